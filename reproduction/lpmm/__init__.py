"""Training neural networks with low-precision model memory."""

from reproduction.exhibit import Paper
from reproduction.lpmm import (
    figure_2,
    figure_3,
    figure_4,
    table_1,
    table_2,
    table_3,
    table_4,
    table_5,
    table_6,
    theorem_1,
)

PAPER = Paper(
    name="low-precision-model-memory",
    title="Training neural networks with low-precision model memory",
    source="LPMM",
    exhibits=(
        figure_2.EXHIBIT,
        figure_3.EXHIBIT,
        figure_4.EXHIBIT,
        table_1.EXHIBIT,
        table_2.EXHIBIT,
        table_3.EXHIBIT,
        table_4.EXHIBIT,
        table_5.EXHIBIT,
        table_6.EXHIBIT,
        theorem_1.EXHIBIT,
    ),
)
