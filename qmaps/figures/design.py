"""The candidates of a design: what they cost, and how far they lead away, for how many bits."""

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
    "step_cost",
    "displacement_error",
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
"""Ends of the axes, at most."""
MEASURES = {"step_cost": "step cost", "displacement_error": "displacement error"}
"""What the rows of panels show, with the labels of their axes."""
KINDS = (
    (True, True, "new codebook, stochastic rounding"),
    (True, False, "new codebook, to nearest"),
    (False, True, "known maps, stochastic rounding"),
    (False, False, "known maps, to nearest"),
)


@figure(file="design/candidates.parquet")
def design(frame: pd.DataFrame) -> Figure:
    """Step cost and displacement error of each candidate over its bits per element.

    One column of panels for each moment, and one for pairs. New codebooks are blue circles, known
    maps orange squares, filled where a quantizer rounds stochastically. What was chosen has a ring,
    and the pair is named above. A cost or an error above 1 is drawn at the edge.

    Args:
        frame: of `qmaps.design.run`: `moment` (``first``, ``second`` or ``both``), `quantizer` (a
            label), `bits_per_element`, `step_cost` and `displacement_error` (at least 0),
            `designed`, `stochastic` and `chosen` (bool).

    Raises:
        BadValueError: columns or rows are missing.
    """
    require(frame, NEEDED, "design")
    shown = [moment for moment in PANELS if (frame["moment"] == moment).any()]
    figure = new(11, 6.8)
    grid = axes(figure, 2, max(1, len(shown)), sharex="col", sharey="row")
    for column, moment in enumerate(shown):
        rows = frame[frame["moment"] == moment]
        grid[0][column].set_title(PANELS[moment])
        grid[-1][column].set_xlabel("bits per element, scales included")
        for row, name in zip(grid, MEASURES, strict=True):
            values = rows[name].to_numpy(float)
            _points(
                row[column],
                rows,
                np.clip(np.nan_to_num(values, nan=np.inf), LEAST_ERROR, MOST_ERROR),
            )
            if outside := int((~(values <= MOST_ERROR)).sum()):
                row[column].text(
                    0.02,
                    0.98,
                    f"{outside} at or above the edge",
                    transform=row[column].transAxes,
                    va="top",
                    fontsize=SMALL,
                    color="#555555",
                )
    hide_unused(grid, 2 * len(shown))
    for row, label in zip(grid, MEASURES.values(), strict=True):
        row[0].set_yscale("log")
        row[0].set_ylabel(label)
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
