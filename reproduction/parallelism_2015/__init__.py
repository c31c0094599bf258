"""8-bit approximations for parallelism in deep learning."""

from reproduction.exhibit import Paper
from reproduction.parallelism_2015 import figure_1, figure_2, table_2, table_5, tables

PAPER = Paper(
    name="8-bit-parallelism-2015",
    title="8-bit approximations for parallelism in deep learning",
    source="Dettmers (2015)",
    exhibits=(figure_1.EXHIBIT, figure_2.EXHIBIT, tables.EXHIBIT, table_2.EXHIBIT, table_5.EXHIBIT),
)
