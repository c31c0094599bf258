"""8-bit approximations for parallelism in deep learning."""

from qmaps.papers.exhibit import Paper
from qmaps.papers.parallelism_2015 import table_2, tables

PAPER = Paper(
    name="8-bit-parallelism-2015",
    title="8-bit approximations for parallelism in deep learning",
    source="Dettmers (2015)",
    exhibits=(table_2.EXHIBIT, tables.EXHIBIT),
)
