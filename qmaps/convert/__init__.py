"""Optimizer checkpoints of torch, bitsandbytes, torchao and qmaps, made into one another."""

from qmaps.convert.file import convert_file
from qmaps.convert.formats import FORMATS
from qmaps.convert.report import Report, StateRow, UpdateRow
from qmaps.convert.state_dict import convert_state_dict
from qmaps.convert.zeros import Zeros

__all__ = [
    "FORMATS",
    "Report",
    "StateRow",
    "UpdateRow",
    "Zeros",
    "convert_file",
    "convert_state_dict",
]
