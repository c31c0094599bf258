"""Error per code of the first moment."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from qmaps.figures.declare import Picture, figure
from qmaps.figures.style import COLOURS, SMALL, axes, legend_below, new, require

PANELS = (
    ("mean_abs_error", "mean |Δu|,\nu = m / (sqrt(v) + eps)"),
    ("mean_rel_error", "mean |Δu| / |u|\n(fraction)"),
    ("use", "use\n(share of elements)"),
)
FEW = 64
"""Maps of at most this many codes get a dot at each."""


@figure(
    Picture(
        "first_code_error",
        "Error per code of the first moment",
        "After figure 5 of the 8-bit paper.",
        place=40,
        stacks=True,
    )
)
def first_code_error(frame: pd.DataFrame, *, stacked: bool = False) -> Figure:
    """The Adam update's error, and the use, for each code of the first moment.

    A column of panels for each pair of quantizers, a row for each quantity, with logarithmic
    ordinates shared in a row. A line breaks at unused codes and values of 0.

    Args:
        frame: of `qmaps.analyze.first_code_error`: `quantizer`, `position` (code scaled to
            [-1, 1]), `use` (share of elements), `mean_abs_error` (of u = m / (sqrt(v) + eps)),
            `mean_rel_error` (fraction).
        stacked: whether there is one column of panels, for a narrow screen, with lines of all pairs
            in each.

    Raises:
        BadValueError: columns or rows are missing.

    Source: 8-bit optimizers, figure 5.
    """
    require(frame, ("quantizer", "position", *(name for name, _ in PANELS)), "first_code_error")
    names = list(frame["quantizer"].unique())
    size = (4.6, 8.0) if stacked else (max(6.4, 2.7 * len(names) + 0.7), 6.6)
    figure = new(*size)
    grid = axes(figure, len(PANELS), 1 if stacked else len(names), sharex=True, sharey="row")
    if stacked:
        grid = [row * len(names) for row in grid]
    for row, (column, label) in zip(grid, PANELS, strict=True):
        row[0].set_ylabel(label)
        for index, (axis, name) in enumerate(zip(row, names, strict=True)):
            rows = frame[frame["quantizer"] == name]
            values = rows[column].where(rows[column] > 0)
            axis.plot(
                rows["position"],
                values,
                color=COLOURS[index % len(COLOURS)],
                linewidth=1.2,
                marker=".",
                markersize=4 if len(rows) > FEW else 6,
                markevery=_dotted(values),
            )
            axis.set_yscale("log")
            axis.set_xlim(-1.04, 1.04)
            axis.set_xticks([-1, -0.5, 0, 0.5, 1])
    if stacked:
        colours = [COLOURS[index % len(COLOURS)] for index in range(len(names))]
        pairs = zip(colours, names, strict=True)
        legend_below(figure, [Line2D([], [], color=c, label=str(name)) for c, name in pairs], 1)
    for axis, name in zip(grid[0], () if stacked else names, strict=not stacked):
        axis.set_title(str(name).replace(" + ", " +\n"), fontsize=SMALL + 0.5)
    label = "code of the first moment, scaled to [-1, 1]"
    if stacked:
        grid[-1][0].set_xlabel(label)
    else:
        figure.supxlabel(label, fontsize=10)
    return figure


def _dotted(values: pd.Series[float]) -> list[int]:
    """The codes that get a dot: all in a small codebook, else those without a line."""
    isolated = values.notna().to_numpy()
    if isolated.size > FEW:
        isolated = isolated & ~np.r_[False, isolated[:-1]] & ~np.r_[isolated[1:], False]
    return [int(code) for code in np.flatnonzero(isolated)]
