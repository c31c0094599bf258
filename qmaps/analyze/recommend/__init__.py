"""Recommendations: verdicts on pairs of quantizers for the states of a run, and a choice."""

from qmaps.analyze.recommend.result import Recommendation, holds, write
from qmaps.analyze.recommend.run import run

__all__ = ["Recommendation", "holds", "run", "write"]
