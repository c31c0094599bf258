"""Sweeps of many quantizers over captured states."""

from qmaps.sweep.plan import STANDARD, Item, plan
from qmaps.sweep.run import run, summarize

__all__ = ["STANDARD", "Item", "plan", "run", "summarize"]
