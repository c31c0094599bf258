"""Sweeps of many quantizers over captured states."""

from qmaps.sweep.plan import STANDARD
from qmaps.sweep.run import run, summarize

__all__ = ["STANDARD", "run", "summarize"]
