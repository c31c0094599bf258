"""Recommendations: verdicts on pairs of quantizers for the states of a run, and a choice."""

from typing import TYPE_CHECKING

from qmaps.registry import lazy

if TYPE_CHECKING:
    from qmaps.analyze.recommend.result import Recommendation, holds, write
    from qmaps.analyze.recommend.run import run

__all__ = ["Recommendation", "holds", "run", "write"]

lazy(__name__, {"result": ("Recommendation", "holds", "write"), "run": ("run",)})
