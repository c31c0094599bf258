"""8-bit optimizers via block-wise quantization."""

from reproduction.eight_bit import (
    appendix_c,
    appendix_f,
    figure_3,
    figure_4,
    figure_5,
    figure_6,
    table_1,
    table_2,
    table_3,
    table_5,
    table_6,
)
from reproduction.exhibit import Paper

PAPER = Paper(
    name="8-bit-optimizers",
    title="8-bit optimizers via block-wise quantization",
    source="Dettmers, Lewis, Shleifer and Zettlemoyer (2021)",
    exhibits=(
        figure_3.EXHIBIT,
        figure_4.EXHIBIT,
        figure_5.EXHIBIT,
        figure_6.EXHIBIT,
        table_1.EXHIBIT,
        table_2.EXHIBIT,
        table_3.EXHIBIT,
        table_5.EXHIBIT,
        table_6.EXHIBIT,
        appendix_c.EXHIBIT,
        appendix_f.EXHIBIT,
    ),
)
