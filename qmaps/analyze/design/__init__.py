"""Designs: codebooks, normalizers and rounding for the states of a run, chosen by replays."""

from qmaps.analyze.design.files import load, write
from qmaps.analyze.design.run import Design, run

__all__ = ["Design", "load", "run", "write"]
