"""Codebooks as curves."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from qmaps.figures._style import COLOURS, axes, hide_unused, new, require

COLUMNS_PER_ROW = 4
DOTS_UP_TO = 32
"""Codebooks of at most this many values are drawn as dots on steps."""


def map_curves(frame: pd.DataFrame) -> Figure:
    """Small multiples: the value of each code, and its magnitude on a log scale.

    Args:
        frame: of `qmaps.analyze.map_curves`: `map`, `position` (code scaled to [0, 1]),
            `value`.

    Source: 8-bit optimizers, figure 6; 4-bit optimizers, figure 32.
    """
    require(frame, ("map", "position", "value"), "map_curves")
    names = list(frame["map"].unique())
    columns = min(COLUMNS_PER_ROW, len(names))
    rows = -(-len(names) // columns)
    figure = new(2.75 * columns, 2.25 * rows + 0.3)
    grid = axes(figure, rows, columns, sharex=True)
    flat = [axis for row in grid for axis in row]
    for index, (axis, name) in enumerate(zip(flat, names, strict=False)):
        part = frame[frame["map"] == name]
        few = len(part) <= DOTS_UP_TO
        axis.plot(
            part["position"],
            part["value"],
            color=COLOURS[0],
            linewidth=1.5,
            drawstyle="steps-mid" if few else "default",
            marker="o" if few else "",
            markersize=3.5,
            label="value",
        )
        log = axis.twinx()
        positive = part["value"].abs().where(part["value"] != 0)
        log.plot(
            part["position"],
            positive,
            color=COLOURS[1],
            linestyle=":",
            linewidth=1.3,
            label="|value|, log",
        )
        log.set_yscale("log")
        log.tick_params(colors=COLOURS[1], labelsize=8)
        log.grid(visible=False)
        axis.set_title(str(name))
        if index % columns == 0:
            axis.set_ylabel("value", color=COLOURS[0])
        if index % columns == columns - 1 or index == len(names) - 1:
            log.set_ylabel("|value| (log)", color=COLOURS[1])
        if index >= len(names) - columns:
            axis.set_xlabel("code, scaled to [0, 1]")
            axis.tick_params(labelbottom=True)
    hide_unused(grid, len(names))
    return figure
