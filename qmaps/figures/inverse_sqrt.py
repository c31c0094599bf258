"""The zero-point problem as a histogram."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from qmaps.figures.declare import Picture, figure
from qmaps.figures.style import COLOURS, SMALL, axes, new, require

COLLAPSED = 6.0
"""log10 h(0)."""


@figure(
    Picture(
        "inverse_sqrt",
        "The zero-point problem",
        "h(v) = 1 / (sqrt(v) + 1e-6) over all second moments that are not 0. After figure 3 of "
        "the 4-bit paper.",
        place=50,
        stacks=True,
    )
)
def inverse_sqrt(frame: pd.DataFrame, *, stacked: bool = False) -> Figure:
    """``h(v) = 1 / (sqrt(v) + 1e-6)`` of the second moment, in 32 bits and quantized.

    A second moment that decodes to 0 lands at 10^6, where its step is a million times the
    first moment. Those elements are drawn in orange and their share is written beside.

    Args:
        frame: of `qmaps.analyze.inverse_sqrt`: `quantizer` (the first is the one in 32 bits),
            `bin_left`, `bin_right` (log10 h), `share` (of the non-zero elements),
            `zero_share` (share of these that decodes to 0; repeated on every row of a
            quantizer).
        stacked: whether panels, which stand below each other, are as narrow as a narrow screen.

    Raises:
        BadValueError: columns or rows are missing.

    Source: 4-bit optimizers, figure 3.
    """
    columns = ("quantizer", "bin_left", "bin_right", "share", "zero_share")
    require(frame, columns, "inverse_sqrt")
    quantizers = list(frame["quantizer"].unique())
    figure = new(4.6 if stacked else 9.5, 1.5 * len(quantizers) + 0.6)
    grid = axes(figure, len(quantizers), 1, sharex=True, sharey=True)
    for index, ((axis,), quantizer) in enumerate(zip(grid, quantizers, strict=True)):
        part = frame[frame["quantizer"] == quantizer]
        edges = [*part["bin_left"], part["bin_right"].iloc[-1]]
        axis.stairs(part["share"], edges, fill=True, color=COLOURS[0 if index == 0 else 2])
        axis.set_title(str(quantizer), loc="left")
        zero = float(part["zero_share"].iloc[0])
        if zero > 0:
            holding = part[(part["bin_left"] <= COLLAPSED) & (part["bin_right"] >= COLLAPSED)]
            spike = (holding if len(holding) else part).iloc[-1]
            width = [float(spike["bin_left"]), float(spike["bin_right"])]
            axis.stairs([zero], width, fill=True, color=COLOURS[1], edgecolor=COLOURS[1], lw=1.5)
            axis.annotate(
                f"{100 * zero:.3g}% of the non-zero values\ndecode to 0: h = $10^6$",
                (width[0], zero),
                xytext=(width[0] - 0.25, 0.97),
                textcoords=axis.get_xaxis_transform(),
                ha="right",
                va="top",
                fontsize=SMALL,
                color="#B34700",
                arrowprops={"arrowstyle": "->", "color": "#B34700", "relpos": (1.0, 0.75)},
            )
    seen = frame.loc[frame["share"] > 0, "share"]
    low = float(seen.min()) / 2 if len(seen) else 1e-3
    grid[0][0].set_yscale("log")
    grid[0][0].set_ylim(low, 2.0)
    figure.supylabel("share of elements per bin (fraction)", fontsize=10)
    grid[-1][0].set_xlabel("log10 h(v), h(v) = 1 / (sqrt(v) + 1e-6)")
    return figure
