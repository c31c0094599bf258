"""Measured convergence beside a bound of theory."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from qmaps.figures.style import (
    COLOURS,
    SMALL,
    axes,
    hide_unused,
    legend_below,
    new,
    require,
    styled,
)

NEEDED = ("setting", "seed", "step", "gap", "bound")
COLUMNS = 3
"""Panels in a row."""


@styled
def convergence_bound(frame: pd.DataFrame) -> Figure:
    """Distance of f from its minimum over steps: each run, their mean, and the bound on the mean.

    Both axes are logarithmic. Each setting has a panel with the looseness of the bound at the end.

    Args:
        frame: rows of reports/lpmm/bound.csv: `setting` (label), `seed`, `step` (from
            1 on, as the axis is logarithmic), `gap` (f at the mean of the iterates minus its
            minimum, above 0), `bound` (upper bound on the expectation of `gap`).

    Raises:
        BadValueError: columns or rows are missing.

    Source: LPMM, theorem 1; 4-bit optimizers, appendix H.
    """
    require(frame, NEEDED, "convergence_bound")
    settings = list(frame["setting"].unique())
    columns = min(COLUMNS, len(settings))
    lines = -(-len(settings) // columns)
    figure = new(3.5 * columns + 1.0, 2.9 * lines + 0.6)
    grid = axes(figure, lines, columns, sharex=True, sharey=True)
    hide_unused(grid, len(settings))
    runs: dict[str, Any] = {"color": COLOURS[4], "linewidth": 0.6}
    mean: dict[str, Any] = {"color": COLOURS[0], "linewidth": 1.6}
    limit: dict[str, Any] = {"color": COLOURS[1], "linewidth": 1.6, "linestyle": "--"}
    for axis, setting in zip([axis for row in grid for axis in row], settings, strict=False):
        rows = frame[frame["setting"] == setting]
        for _, part in rows.groupby("seed", sort=False):
            axis.plot(part["step"], part["gap"], **runs)
        averaged = rows.groupby("step")[["gap", "bound"]].mean()
        axis.plot(averaged.index, averaged["gap"], **mean)
        axis.plot(averaged.index, averaged["bound"], **limit)
        axis.set_title(setting, loc="left")
        loose = averaged["bound"].iloc[-1] / averaged["gap"].iloc[-1]
        axis.text(
            0.97, 0.95, f"at the end the bound is\n{loose:,.0f} times the mean",
            transform=axis.transAxes, ha="right", va="top", fontsize=SMALL,
        )  # fmt: skip
    grid[0][0].set_xscale("log")
    grid[0][0].set_yscale("log")
    figure.supylabel("$f$(mean of the iterates) $- f^*$", fontsize=10)
    for axis in [axis for row in grid for axis in row][len(settings) - columns : len(settings)]:
        axis.set_xlabel("step")
        axis.tick_params(labelbottom=True)  # also above an empty place
    looks = (("runs", runs), ("mean", mean), ("bound", limit))
    legend_below(figure, [Line2D([], [], label=name, **how) for name, how in looks], 3)
    return figure
