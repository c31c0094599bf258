"""Sweeps of many quantizers over captured states."""

from qmaps.sweep.parts import merge
from qmaps.sweep.plan import STANDARD, Item, plan, standard
from qmaps.sweep.run import run, summarize

__all__ = ["STANDARD", "Item", "merge", "plan", "run", "standard", "summarize"]
