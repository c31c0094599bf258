"""Optimizer checkpoints of torch, bitsandbytes, torchao and qmaps, made into one another."""

from qmaps.capture.conversion.convert import convert_file, convert_state_dict
from qmaps.capture.conversion.formats import FORMATS
from qmaps.capture.conversion.report import Report, StateRow, UpdateRow, Zeros

__all__ = [
    "FORMATS",
    "Report",
    "StateRow",
    "UpdateRow",
    "Zeros",
    "convert_file",
    "convert_state_dict",
]
