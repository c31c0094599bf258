"""Memory efficient optimizers with 4-bit states."""

from reproduction.exhibit import Paper
from reproduction.four_bit import (
    figure_1,
    figure_3,
    figure_4,
    figure_32,
    figures_5_to_19,
    figures_20_to_31,
    table_1,
    table_2,
    table_4,
    table_5,
    table_6,
)

PAPER = Paper(
    name="4-bit-optimizers",
    title="Memory efficient optimizers with 4-bit states",
    source="Li, Chen and Zhu (2023)",
    exhibits=(
        figure_1.EXHIBIT,
        figure_3.EXHIBIT,
        figure_4.EXHIBIT,
        figures_5_to_19.EXHIBIT,
        figures_20_to_31.EXHIBIT,
        figure_32.EXHIBIT,
        table_1.EXHIBIT,
        table_2.EXHIBIT,
        table_4.EXHIBIT,
        table_5.EXHIBIT,
        table_6.EXHIBIT,
    ),
)
