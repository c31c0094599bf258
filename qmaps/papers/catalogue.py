"""All papers."""

from __future__ import annotations

from qmaps.papers import eight_bit, four_bit
from qmaps.papers.exhibit import Paper

PAPERS: dict[str, Paper] = {paper.name: paper for paper in (eight_bit.PAPER, four_bit.PAPER)}
"""By the name of their folder, in the order of the summary."""
