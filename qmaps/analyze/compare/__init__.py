"""Two runs' optimizer states side by side, and two choices of quantizers."""

from qmaps.analyze.compare.choices import ChoicesCompared, choices
from qmaps.analyze.compare.runs import RunsCompared, runs

__all__ = ["ChoicesCompared", "RunsCompared", "choices", "runs"]
