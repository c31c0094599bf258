"""Parts of all figures: colours, column checks, axes, isolation from matplotlib's state."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec

import matplotlib.style
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.figure import Figure

from qmaps.errors import BadValueError, printable

__all__ = [
    "COLOURS", "SMALL", "UNUSED", "axes", "colour_bar", "extent", "hide_unused", "legend_below",
    "look", "mark", "new", "panels", "require", "style", "styled",
]  # fmt: skip

LONGEST = 120
"""Most characters of a name; the middle of a longer name is left out."""


def as_text(value: Any) -> Any:
    """Return `value` with every text in it made `literal`; numbers and the rest stay as they are.

    `value` may be a frame, a text, or a mapping, list or tuple of such. Texts of a frame's column
    that differ stay different.
    """
    if isinstance(value, pd.DataFrame):
        shown = value.copy(deep=False)
        for name, column in value.items():
            if _holds_text(column):
                shown[name] = _column(column)
        return shown
    if isinstance(value, str):
        return literal(value)
    if isinstance(value, Mapping):
        return {as_text(name): as_text(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(as_text, value))
    return value


def literal(text: str) -> str:
    r"""Escape a text for matplotlib to show it as it is: no mathematics, and on one line.

    A text of more than 120 characters loses its middle.

    >>> print(literal("$x$"))
    \$x\$
    """
    shown = printable(text)
    if len(shown) > LONGEST:
        half = (LONGEST - 3) // 2
        shown = f"{shown[:half]}...{shown[-half:]}"
    return shown.replace("$", r"\$")


def _holds_text(column: pd.Series) -> bool:
    return column.dtype == object or isinstance(column.dtype, (pd.StringDtype, pd.CategoricalDtype))


def _column(column: pd.Series) -> pd.Series:
    """The column with its texts literal; long ones get numbers where they would be equal."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return column.cat.rename_categories(_names(column.cat.categories))
    return column.map(_names(column.unique()), na_action="ignore")


def _names(texts: Any) -> dict[Any, Any]:
    names: dict[Any, Any] = {}
    used: set[Any] = set()
    for value in texts:
        name = as_text(value)
        if isinstance(value, str):
            number, plain = 1, name
            while name in used:
                number += 1
                name = f"{plain} ({number})"
            used.add(name)
        names[value] = name
    return names


P = ParamSpec("P")

# Okabe and Ito's: told apart with every common colour blindness, and in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#8C8C8C")
"""Colours of categories."""
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "h", "p")
UNUSED = "#EEEEEE"
"""Colour of cells without data."""

SMALL = 9.0
"""Smallest size of text in points: legible where a page shows a figure 1000 pixels wide."""

RC: dict[str, Any] = {
    "font.size": 10.0,
    "axes.titlesize": 10.5,
    "axes.labelsize": 10.0,
    "legend.fontsize": SMALL,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "svg.hashsalt": "qmaps",
    "pdf.fonttype": 42,
}
_LOCK = threading.RLock()


@contextmanager
def style() -> Iterator[None]:
    """Matplotlib's defaults and `RC`, whatever the user has set; one thread at a time.

    Matplotlib's settings are global to the process, so two threads must not exchange them at once.
    """
    with _LOCK, matplotlib.style.context(["default", RC]):
        yield


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Decorate a drawing function to run in `style`, its texts made literal first."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        literal_args: list[Any] = [as_text(value) for value in args]
        options: dict[str, Any] = {name: as_text(value) for name, value in kwargs.items()}
        with style():
            return draw(*literal_args, **options)

    return drawn


def require(frame: pd.DataFrame, columns: Iterable[str], figure: str) -> None:
    """Raise a BadValueError if a frame for a figure has no rows, or lacks a column."""
    needed = list(columns)
    missing = [name for name in needed if name not in frame.columns]
    if missing:
        raise BadValueError(
            f"frame lacks {', '.join(missing)}; {figure} needs the columns {', '.join(needed)}"
        )
    if frame.empty:
        raise BadValueError(f"frame has no rows; {figure} needs at least one")


def new(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches, unknown to pyplot."""
    return Figure(figsize=(width, height), layout="constrained")


def axes(figure: Figure, rows: int, columns: int, **options: object) -> list[list[Axes]]:
    """Add a grid of axes in the shared style to a figure, as a list of rows from the top.

    `options` are further ones of ``matplotlib.figure.Figure.subplots``, such as `sharex`.
    """
    grid = figure.subplots(rows, columns, squeeze=False, **options)  # type: ignore[call-overload]
    for axis in grid.flat:
        # Ticks are made late, perhaps when the shared style no longer holds.
        axis.tick_params(labelsize=SMALL)
    return [list(row) for row in grid]


def panels(figure: Figure, count: int, *, stacked: bool, **options: object) -> list[Axes]:
    """Add axes beside each other, or below each other if `stacked`; options as for `axes`."""
    rows, columns = (count, 1) if stacked else (1, count)
    return [axis for row in axes(figure, rows, columns, **options) for axis in row]


def look(index: int) -> dict[str, Any]:
    """Return the colour and the line style of the category with this number, from 0."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": DASHES[index // len(COLOURS) % len(DASHES) if index >= 8 else index % 4],
    }


def mark(index: int) -> dict[str, Any]:
    """Return the colour and the marker of the category with this number, from 0."""
    return {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}


def legend_below(figure: Figure, handles: Sequence[Artist], columns: int) -> None:
    """Add one legend for all panels below them, with at most this many columns."""
    figure.legend(
        handles=list(handles),
        loc="outside lower center",
        ncols=max(1, min(columns, len(handles))),
        frameon=False,
    )


def hide_unused(grid: list[list[Axes]], used: int) -> None:
    """Hide the axes after the first `used`, counted row by row."""
    for axis in [axis for row in grid for axis in row][used:]:
        axis.set_visible(False)


def extent(low: bool, high: bool) -> str:
    """The ends of a colour bar with an arrow, as values lie beyond them."""
    return (("neither", "max"), ("min", "both"))[low][high]


MOST_TICKS = 5


def colour_bar(figure: Figure, mesh: ScalarMappable, **options: Any) -> Colorbar:
    """Add a colour bar of a logarithmic norm, with few ticks, so that none overlap.

    Options are those of ``matplotlib.figure.Figure.colorbar``.
    """
    bar = figure.colorbar(mesh, extendfrac=0.03, **options)
    ticks = log_ticks(*mesh.get_clim())
    bar.set_ticks(ticks, labels=[_power(tick) for tick in ticks], minor=False)
    bar.minorticks_off()
    bar.ax.tick_params(labelsize=SMALL)
    return bar


def log_ticks(low: float, high: float) -> list[float]:
    """At most `MOST_TICKS` round numbers between two positive ones, about even in the logarithm.

    >>> log_ticks(1, 10), log_ticks(2, 60), log_ticks(1e-9, 1e7)
    ([1.0, 2.0, 5.0, 10.0], [2.0, 5.0, 10.0, 20.0, 50.0], [1e-09, 1e-05, 0.1, 1000.0, 10000000.0])
    """
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    decades = range(first, last + 1)
    if len(decades) > 2:
        return [10.0**decade for decade in decades[:: -(-len(decades) // MOST_TICKS)]]
    within = (low * (1 - 1e-9), high * (1 + 1e-9))
    for digits in ((1, 2, 5), (1, 3), (1, 2, 3, 4, 6, 8)):
        ticks = [digit * 10.0**decade for decade in range(first - 1, last + 1) for digit in digits]
        ticks = [tick for tick in ticks if within[0] <= tick <= within[1]]
        if 2 <= len(ticks) <= MOST_TICKS:
            return ticks
    return [low, high]


def _power(value: float) -> str:
    """A tick as text: 0.01 to 1000 plainly, others as a power of ten."""
    if 0.01 <= value < 1e4:
        return f"{value:.2g}" if value < 100 else f"{value:.0f}"
    mantissa, exponent = f"{value:.0e}".split("e")
    power = f"$10^{{{int(exponent)}}}$"
    return power if mantissa == "1" else f"{mantissa}\N{MULTIPLICATION SIGN}{power}"
