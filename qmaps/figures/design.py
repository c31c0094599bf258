"""The candidates of a design: how far they lead away, and what they keep, for how many bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from qmaps.figures._declare import figure
from qmaps.figures._style import COLOURS, SMALL, axes, hide_unused, legend_below, new, require

NEEDED = (
    "moment",
    "quantizer",
    "bits_per_element",
    "displacement_error",
    "net_progress",
    "designed",
    "stochastic",
    "chosen",
)
PANELS = {
    "first": "first moment, the other in 32 bits",
    "second": "second moment, the other in 32 bits",
    "both": "both moments",
}
LEAST_ERROR, MOST_ERROR = 1e-6, 1.0
"""Ends of the axis of errors, at most."""
LEAST_PROGRESS = 0.0
"""Lower end of the axis of net progress."""
KINDS = (
    (True, True, "new codebook, stochastic rounding"),
    (True, False, "new codebook, to nearest"),
    (False, True, "known maps, stochastic rounding"),
    (False, False, "known maps, to nearest"),
)


@figure(file="design/candidates.parquet")
def design(frame: pd.DataFrame) -> Figure:
    """Displacement error and net progress of each candidate over its bits per element.

    One column of panels for each moment, and one for pairs. New codebooks are blue circles, known
    maps orange squares, filled where a quantizer rounds stochastically. What was chosen has a ring,
    and the pair is named above. A candidate whose error is above 1, or whose net progress is below
    0, is drawn at the edge.

    Args:
        frame: of `qmaps.design.run`: `moment` (``first``, ``second`` or ``both``), `quantizer` (a
            label), `bits_per_element`, `displacement_error` (at least 0), `net_progress` (1 is
            exact), `designed`, `stochastic` and `chosen` (bool).

    Raises:
        BadValueError: columns or rows are missing.
    """
    require(frame, NEEDED, "design")
    shown = [moment for moment in PANELS if (frame["moment"] == moment).any()]
    figure = new(11, 6.8)
    grid = axes(figure, 2, max(1, len(shown)), sharex="col", sharey="row")
    for column, moment in enumerate(shown):
        rows = frame[frame["moment"] == moment]
        top, bottom = grid[0][column], grid[1][column]
        top.set_title(PANELS[moment])
        errors = rows["displacement_error"].to_numpy(float)
        progress = rows["net_progress"].to_numpy(float)
        _points(top, rows, np.clip(np.nan_to_num(errors, nan=np.inf), LEAST_ERROR, MOST_ERROR))
        _points(bottom, rows, np.maximum(progress, LEAST_PROGRESS))
        bottom.set_xlabel("bits per element, scales included")
        for axis, outside, side in (
            (top, int((~(errors <= MOST_ERROR)).sum()), "above"),
            (bottom, int((progress < LEAST_PROGRESS).sum()), "below"),
        ):
            if outside:
                height = 0.98 if side == "above" else 0.02
                axis.text(
                    0.02,
                    height,
                    f"{outside} at or {side} the edge",
                    transform=axis.transAxes,
                    va="top" if side == "above" else "bottom",
                    fontsize=SMALL,
                    color="#555555",
                )
    hide_unused(grid, 2 * len(shown))
    grid[0][0].set_yscale("log")
    grid[0][0].set_ylabel("displacement error")
    grid[1][0].set_ylabel("net progress (1 is exact)")
    for name in frame.loc[(frame["moment"] == "both") & frame["chosen"].astype(bool), "quantizer"]:
        figure.suptitle(f"chosen: {name}", fontsize=10)
    legend_below(figure, _handles(), 5)
    return figure


def _points(axis: Axes, rows: pd.DataFrame, values: np.ndarray) -> None:
    bits = rows["bits_per_element"].to_numpy(float)
    designed, stochastic = (rows[name].to_numpy(bool) for name in ("designed", "stochastic"))
    for new_one, random, _ in KINDS:
        own = (designed == new_one) & (stochastic == random)
        axis.plot(bits[own], values[own], **_look(new_one, random))
    chosen = rows["chosen"].to_numpy(bool)
    axis.plot(bits[chosen], values[chosen], **_ring())
    axis.margins(x=0.15, y=0.15)


def _look(designed: bool, stochastic: bool) -> dict[str, Any]:
    colour = COLOURS[0] if designed else COLOURS[1]
    return {
        "linestyle": "",
        "marker": "o" if designed else "s",
        "markersize": 6,
        "markeredgecolor": colour,
        "markerfacecolor": colour if stochastic else "none",
        "alpha": 0.85,
    }


def _ring() -> dict[str, Any]:
    return {
        "linestyle": "",
        "marker": "o",
        "markersize": 13,
        "markeredgecolor": "#000000",
        "markerfacecolor": "none",
    }


def _handles() -> list[Line2D]:
    kinds = [Line2D([], [], label=label, **_look(*kind)) for *kind, label in KINDS]
    return [*kinds, Line2D([], [], label="chosen", **_ring())]
