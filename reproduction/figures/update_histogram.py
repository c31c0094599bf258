"""Distribution of updates in units of the distance between codes."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from qmaps.figures.style import COLOURS, SMALL, axes, legend_below, new, require, styled

NEEDED = ("parameter", "setting", "bin_left", "bin_right", "share", "cumulative")
BARS, CURVE = COLOURS[4], COLOURS[1]
MARKS = {0.125: "$\\delta/8$", 0.5: "$\\delta/2$"}
"""Abscissas with a printed cumulative share, if bins end there."""


@styled
def update_histogram(frame: pd.DataFrame) -> Figure:
    """Density and cumulative distribution of |update| / delta, a row per parameter.

    The abscissa is logarithmic; the first bin, with the updates of 0, and the last are drawn one
    octave wide. Shares below delta / 8 and delta / 2 are written beside the curve.

    Args:
        frame: rows of reports/lpmm/update-histogram.csv with a column added.
            The columns are `parameter` (name), `bin_left`, `bin_right` (in units of delta; the
            first bin may start at 0, the last may end at infinity), `share` (of the elements, 0 to
            1), `cumulative` (share up to the bin's right end, 0 to 1) and `setting` (label; each
            has a column of panels).

    Raises:
        BadValueError: columns or rows are missing.

    Source: LPMM, figure 3.
    """
    require(frame, NEEDED, "update_histogram")
    parameters = list(frame["parameter"].unique())
    settings = list(frame["setting"].unique())
    figure = new(4.2 * len(settings) + 0.8, 2.0 * len(parameters) + 1.0)
    grid = axes(figure, len(parameters), len(settings), sharex=True, sharey=True)
    for row, parameter in zip(grid, parameters, strict=True):
        for axis, setting in zip(row, settings, strict=True):
            part = frame[(frame["parameter"] == parameter) & (frame["setting"] == setting)]
            if part.empty:
                continue
            left, right = part["bin_left"].to_numpy(), part["bin_right"].to_numpy()
            edges = np.r_[left[0] or right[0] / 2, right]
            if np.isinf(edges[-1]):
                edges[-1] = 2 * edges[-2]
            # As tall as the share that it holds, so that the curve is their sum.
            axis.stairs(part["share"], edges, fill=True, color=BARS)
            axis.plot(right[:-1], part["cumulative"].iloc[:-1], color=CURVE, linewidth=1.4)
            for place, label in MARKS.items():
                cumulative = part.loc[np.isclose(right, place), "cumulative"]
                if cumulative.empty:
                    continue
                share = float(cumulative.iloc[0])
                # Over a rising curve there is room to the left, under it to the right.
                above = place == min(MARKS)
                axis.plot([place], [share], "o", color=CURVE, markersize=4)
                axis.annotate(
                    f"{share:.0%} < {label}",
                    (place, share),
                    xytext=(-5, 3) if above else (5, -3),
                    textcoords="offset points",
                    ha="right" if above else "left",
                    va="bottom" if above else "top",
                    fontsize=SMALL,
                )
        row[0].set_ylabel(parameter)
    grid[0][0].set_xscale("log", base=2)
    grid[0][0].set_xlim(right=2 * _last(frame))
    grid[0][0].set_ylim(0, 1.04)
    grid[0][0].yaxis.set_major_formatter(PercentFormatter(1))
    for axis, setting in zip(grid[0], settings, strict=True):
        axis.set_title(setting, loc="left")
    for axis in grid[-1]:
        axis.set_xlabel("|update| / $\\delta$")
    handles = [
        Patch(color=BARS, label="share of elements"),
        Line2D([], [], color=CURVE, label="cumulative share"),
    ]
    legend_below(figure, handles, 2)
    return figure


def _last(frame: pd.DataFrame) -> float:
    """The right end of the last non-empty bin with a finite end."""
    used = frame.loc[(frame["share"] > 0) & np.isfinite(frame["bin_right"]), "bin_right"]
    return float(used.max()) if len(used) else 1.0
