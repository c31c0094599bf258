"""Error per code of the first moment."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from qmaps.figures.declare import Picture, figure
from qmaps.figures.style import COLOURS, SMALL, axes, new, require

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
    )
)
def first_code_error(frame: pd.DataFrame) -> Figure:
    """The Adam update's error, and the use, for each code of the first moment.

    A column of panels for each pair of quantizers, a row for each quantity, with logarithmic
    ordinates shared in a row. A line breaks at unused codes and values of 0.

    Args:
        frame: of `qmaps.analyze.first_code_error`: `quantizer`, `position` (code scaled to
            [-1, 1]), `use` (share of elements), `mean_abs_error` (of u = m / (sqrt(v) + eps)),
            `mean_rel_error` (fraction).

    Raises:
        BadValueError: columns or rows are missing.

    Source: 8-bit optimizers, figure 5.
    """
    require(frame, ("quantizer", "position", *(name for name, _ in PANELS)), "first_code_error")
    names = list(frame["quantizer"].unique())
    figure = new(max(6.4, 2.7 * len(names) + 0.7), 6.6)
    grid = axes(figure, len(PANELS), len(names), sharex=True, sharey="row")
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
    for axis, name in zip(grid[0], names, strict=True):
        axis.set_title(str(name).replace(" + ", " +\n"), fontsize=SMALL + 0.5)
    figure.supxlabel("code of the first moment, scaled to [-1, 1]", fontsize=10)
    return figure


def _dotted(values: pd.Series[float]) -> list[int]:
    """The codes that get a dot: all in a small codebook, else those without a line."""
    isolated = values.notna().to_numpy()
    if isolated.size > FEW:
        isolated = isolated & ~np.r_[False, isolated[:-1]] & ~np.r_[isolated[1:], False]
    return [int(code) for code in np.flatnonzero(isolated)]
