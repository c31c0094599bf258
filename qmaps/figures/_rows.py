"""Panels side by side with a row for each pair of quantizers, and a point for each measure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from qmaps.figures._style import COLOURS, axes, legend_below, new

MOMENTS = (("first", "first moment", "o", COLOURS[0]), ("second", "second moment", "D", COLOURS[1]))
"""Ending of a measure's columns, label, marker and colour of each moment."""


def panels(frame: pd.DataFrame, count: int) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels in a row, a line of each for every row of `frame`.

    Args:
        frame: rows with the column `quantizer`, their names from the top.
        count: number of panels.
    """
    figure = new(2.6 * count, 0.24 * len(frame) + 1.7)
    (row,) = axes(figure, 1, count, sharey=True)
    row[0].set_yticks(np.arange(len(frame)), [str(name) for name in frame["quantizer"]])
    row[0].set_ylim(len(frame) - 0.4, -0.6)
    return figure, row


def points(axis: Axes, values: pd.Series, lines: Sequence[float] = ()) -> None:
    """Finite values as points; lines where something changes."""
    for line in lines:
        axis.axvline(line, color="#777777", linewidth=1)
    _draw(axis, values, "o", COLOURS[2])


def of_moments(axis: Axes, frame: pd.DataFrame, measure: str, factor: float = 1) -> None:
    """The finite values of a measure of both moments, times `factor`."""
    for ending, _, marker, tint in MOMENTS:
        _draw(axis, factor * frame[f"{measure}_{ending}"], marker, tint)


def name_gain(axis: Axes, label: str) -> None:
    """Ticks and limits of gains clipped to 0 and 1.5."""
    axis.set_xticks([0, 0.5, 1, 1.5], ["≤0", "0.5", "1", "≥1.5"])
    axis.set_xlim(-0.06, 1.56)
    axis.set_xlabel(label)


def legend_of_moments(figure: Figure) -> None:
    """Add a legend of the two moments below the panels."""
    handles = [
        Line2D([], [], linestyle="", marker=marker, color=tint, label=label)
        for _, label, marker, tint in MOMENTS
    ]
    legend_below(figure, handles, 2)


def _draw(axis: Axes, values: pd.Series, marker: str, tint: str) -> None:
    shown = values.to_numpy(float)
    shown = np.where(np.isfinite(shown), shown, np.nan)
    places = np.arange(len(shown))
    axis.plot(shown, places, marker, color=tint, markersize=5, linestyle="")
