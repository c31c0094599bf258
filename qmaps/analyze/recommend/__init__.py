"""Recommendations: which pairs of quantizers are safe for the states of a run, and which to use."""

from qmaps.analyze.recommend.result import Recommendation, holds, write
from qmaps.analyze.recommend.run import run

__all__ = ["Recommendation", "holds", "run", "write"]
