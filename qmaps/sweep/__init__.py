"""Sweeps of many quantizers over captured states."""

from qmaps.sweep.grid import STANDARD, standard
from qmaps.sweep.run import run
from qmaps.sweep.summary import summarize

__all__ = ["STANDARD", "run", "standard", "summarize"]
