"""Codebooks as curves."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from qmaps.figures.declare import Picture, figure
from qmaps.figures.style import (
    COLOURS,
    DASHES,
    SMALL,
    axes,
    hide_unused,
    legend_below,
    mark,
    new,
    require,
)

TOGETHER = 6
"""Up to this many maps are drawn in the same panels."""
COLUMNS_PER_ROW = 4
DOTS_UP_TO = 32
"""Codebooks of at most this many values are drawn as dots on steps."""


@figure(
    Picture(
        "map_curves",
        "The maps",
        "Value of each code, and its magnitude on a logarithmic scale (dotted). log2 shows "
        "positions in a block's log2 range, with -1 for exact zero.",
        place=110,
    )
)
def map_curves(frame: pd.DataFrame) -> Figure:
    """The value of each code, and its magnitude on a logarithmic scale.

    Up to six maps share two panels; more get a panel each, with the magnitude on a second
    ordinate. Codebooks of up to 32 values are steps with a dot at each. A value of 0 has no
    logarithm and leaves a gap.

    Args:
        frame: of `qmaps.analyze.map_curves`: `map` (such as ``DE@8s``), `position` (code scaled
            to [0, 1]), `value` (codebook value, dimensionless).

    Raises:
        BadValueError: columns or rows are missing.

    Source: 8-bit optimizers, figure 6; 4-bit optimizers, figure 32.
    """
    require(frame, ("map", "position", "value"), "map_curves")
    names = list(frame["map"].unique())
    return _together(frame, names) if len(names) <= TOGETHER else _apart(frame, names)


def _together(frame: pd.DataFrame, names: list[str]) -> Figure:
    """All maps in the same two panels."""
    figure = new(10.5, 4.4)
    linear, log = axes(figure, 1, 2)[0]
    for index, name in enumerate(names):
        part = frame[frame["map"] == name]
        look = _shape(part) | mark(index) | {"linestyle": DASHES[index % len(DASHES)]}
        look["markevery"] = 1 if len(part) <= DOTS_UP_TO else (index, max(1, len(part) // 12))
        linear.plot(part["position"], part["value"], label=str(name), **look)
        log.plot(part["position"], _magnitude(part), label=str(name), **look)
    linear.set_ylabel("value")
    log.set_ylabel("|value| (log; 0 left out)")
    log.set_yscale("log")
    for axis in (linear, log):
        axis.set_xlabel("code, scaled to [0, 1]")
    legend_below(figure, linear.get_legend_handles_labels()[0], TOGETHER)
    return figure


def _apart(frame: pd.DataFrame, names: list[str]) -> Figure:
    """A panel each."""
    rows = -(-len(names) // COLUMNS_PER_ROW)
    figure = new(11, 2.1 * rows + 0.3)
    grid = axes(figure, rows, COLUMNS_PER_ROW, sharey=True)
    for index, name in enumerate(names):
        axis = grid[index // COLUMNS_PER_ROW][index % COLUMNS_PER_ROW]
        part = frame[frame["map"] == name]
        marker = "o" if len(part) <= DOTS_UP_TO else ""
        axis.plot(part["position"], part["value"], color=COLOURS[0], marker=marker, **_shape(part))
        log = axis.twinx()
        log.plot(part["position"], _magnitude(part), color=COLOURS[1], linestyle=":", linewidth=1.4)
        log.set_yscale("log")
        log.tick_params(axis="y", which="both", colors=COLOURS[1], labelsize=SMALL)
        log.locator_params(axis="y", numticks=5)
        log.minorticks_off()
        log.grid(visible=False)
        axis.set_title(str(name))
        axis.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
        if index % COLUMNS_PER_ROW == 0:
            axis.set_ylabel("value", color=COLOURS[0])
        if index % COLUMNS_PER_ROW == COLUMNS_PER_ROW - 1 or index == len(names) - 1:
            log.set_ylabel("|value| (log)", color=COLOURS[1])
    hide_unused(grid, len(names))
    figure.supxlabel("code, scaled to [0, 1]", fontsize=10)
    return figure


def _shape(part: pd.DataFrame) -> dict[str, Any]:
    """Steps for small codebooks, a line for large ones."""
    dotted = len(part) <= DOTS_UP_TO
    return {
        "linewidth": 1.0 if dotted else 1.5,
        "drawstyle": "steps-mid" if dotted else "default",
        "markersize": 4.0,
    }


def _magnitude(part: pd.DataFrame) -> pd.Series[float]:
    """|value|, NaN where it is 0."""
    return part["value"].abs().where(part["value"] != 0)
