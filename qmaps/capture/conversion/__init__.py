"""Optimizer checkpoints of torch, bitsandbytes, torchao and qmaps, made into one another."""

from qmaps.capture.conversion.file import convert_file
from qmaps.capture.conversion.formats import FORMATS
from qmaps.capture.conversion.report import Report, StateRow, UpdateRow, Zeros
from qmaps.capture.conversion.state_dict import convert_state_dict

__all__ = [
    "FORMATS",
    "Report",
    "StateRow",
    "UpdateRow",
    "Zeros",
    "convert_file",
    "convert_state_dict",
]
