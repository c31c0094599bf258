"""What all figures share: colours, column checks, axes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qmaps.errors import BadValueError

# Okabe and Ito's colours: told apart with every common colour blindness, and in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#8C8C8C")
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "h", "p")
UNUSED = "#EEEEEE"
"""Colour of cells without data."""

RC: Any = {
    "font.size": 10.0,
    "axes.titlesize": 10.5,
    "axes.labelsize": 10.0,
    "legend.fontsize": 9.0,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "svg.hashsalt": "qmaps",
}


def require(frame: pd.DataFrame, columns: Iterable[str], figure: str) -> None:
    """Raise unless `frame` has rows and these columns."""
    needed = list(columns)
    missing = [name for name in needed if name not in frame.columns]
    if missing:
        raise BadValueError(
            f"frame lacks {', '.join(missing)}; {figure} needs the columns {', '.join(needed)}"
        )
    if frame.empty:
        raise BadValueError(f"frame has no rows; {figure} needs at least one")


def new(width: float, height: float) -> Figure:
    """An empty figure of that size in inches, apart from pyplot's global state."""
    with mpl.rc_context(RC):
        return Figure(figsize=(width, height), layout="constrained")


def axes(figure: Figure, rows: int, columns: int, **options: object) -> list[list[Axes]]:
    """A grid of axes in the shared style."""
    with mpl.rc_context(RC):
        grid = figure.subplots(rows, columns, squeeze=False, **options)  # type: ignore[call-overload]
    return [list(row) for row in grid]


def look(index: int) -> dict[str, Any]:
    """Colour and dashes of the category with this number."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": DASHES[index // len(COLOURS) % len(DASHES) if index >= 8 else index % 4],
    }


def hide_unused(grid: list[list[Axes]], used: int) -> None:
    """Blank the axes after the first `used`."""
    for axis in [axis for row in grid for axis in row][used:]:
        axis.set_visible(False)
