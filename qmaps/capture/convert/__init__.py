"""Optimizer checkpoints of torch, bitsandbytes, torchao and qmaps, made into one another."""

from qmaps.capture.convert.file import convert_file
from qmaps.capture.convert.formats import FORMATS
from qmaps.capture.convert.report import Report, StateRow, UpdateRow
from qmaps.capture.convert.state_dict import convert_state_dict
from qmaps.capture.convert.zeros import Zeros

__all__ = [
    "FORMATS",
    "Report",
    "StateRow",
    "UpdateRow",
    "Zeros",
    "convert_file",
    "convert_state_dict",
]
