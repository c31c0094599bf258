"""Sweeps of many quantizers over captured states."""

from qmaps.sweep.grid import STANDARD, standard
from qmaps.sweep.merge import merge
from qmaps.sweep.plan import Item, plan
from qmaps.sweep.run import run
from qmaps.sweep.summary import summarize

__all__ = ["STANDARD", "Item", "merge", "plan", "run", "standard", "summarize"]
