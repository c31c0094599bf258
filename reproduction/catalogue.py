"""All papers."""

from __future__ import annotations

from reproduction import adafactor_8bit, eight_bit, four_bit, lpmm, parallelism_2015
from reproduction.exhibit import Paper

_ALL = (
    eight_bit.PAPER,
    four_bit.PAPER,
    parallelism_2015.PAPER,
    lpmm.PAPER,
    adafactor_8bit.PAPER,
)
PAPERS: dict[str, Paper] = {paper.name: paper for paper in _ALL}
"""Papers by the name of their folder, in the order of the summary."""
