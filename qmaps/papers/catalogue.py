"""All papers."""

from __future__ import annotations

from collections.abc import Mapping

from qmaps.papers import eight_bit
from qmaps.papers.exhibit import Paper

PAPERS: Mapping[str, Paper] = {paper.name: paper for paper in (eight_bit.PAPER,)}
"""By the name of their folder, in the order of the summary."""
