"""Bits of numbers, field by field."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from qmaps.figures.style import COLOURS, SMALL, axes, new, require, styled

NEEDED = ("map", "value", "decoded", "bit", "set", "field")
TINT = 0.3
"""Opacity of a field's colour, under black digits."""
LONGEST = 12
"""Longest number without an exponent, in characters."""
ROOM = 3.0
"""Space for the decoded number, in widths of a bit."""


@styled
def bit_fields(frame: pd.DataFrame) -> Figure:
    """The bits of each number in each data type, with their fields and decoded values.

    Args:
        frame: of `reproduction.analyses.bit_fields`: `map` (such as ``tree@8s``), `value` (the
            number), `decoded` (the value of its bits), `bit` (place, from 0), `set` (0 or 1),
            `field` (name of the bit's field).

    Raises:
        BadValueError: columns or rows are missing.

    Source: 8-bit approximations for parallelism, figure 1.
    """
    require(frame, NEEDED, "bit_fields")
    names, values = list(frame["map"].unique()), list(frame["value"].unique())
    fields = list(frame["field"].unique())
    colours = {field: COLOURS[index % len(COLOURS)] for index, field in enumerate(fields)}
    bits = int(frame["bit"].max()) + 1
    figure = new(0.42 * (bits + ROOM) * len(values) + 1.2, 0.72 * len(names) + 1.0)
    row = axes(figure, 1, len(values), sharex=True, sharey=True)[0]
    for axis, value in zip(row, values, strict=True):
        for place, name in enumerate(names):
            part = frame[(frame["map"] == name) & (frame["value"] == value)].sort_values("bit")
            _draw(axis, part, place, colours)
        axis.set_title(_digits(value, 7), loc="left")
        axis.set_xlim(-0.6, bits - 0.5 + ROOM)
        axis.set_ylim(len(names) - 0.3, -0.75)
        axis.set_xticks(range(bits), [str(bit + 1) for bit in range(bits)])
        axis.set_xlabel("bit")
        axis.set_yticks(range(len(names)), names)
        axis.grid(visible=False)
        axis.tick_params(length=0)
        for spine in axis.spines.values():
            spine.set_visible(False)
    row[0].set_ylabel("data type")
    return figure


def _digits(value: float, digits: int) -> str:
    """The number, rounded to so many digits, without an exponent unless it is long."""
    rounded = float(f"{value:.{digits}g}")
    plain = np.format_float_positional(rounded, trim="-")
    return plain if len(plain) <= LONGEST else f"{rounded:g}"


def _draw(axis: Axes, part: pd.DataFrame, place: int, colours: dict[str, str]) -> None:
    """A row of cells: digits, names of fields above them, and the number at the end."""
    cells = list(zip(part["bit"], part["set"], part["field"], strict=True))
    for bit, digit, field in cells:
        cell = (bit - 0.5, place - 0.2)
        face = to_rgba(colours[field], TINT)
        axis.add_patch(Rectangle(cell, 1, 0.5, facecolor=face, edgecolor="white", linewidth=1))
        axis.text(bit, place + 0.05, str(digit), ha="center", va="center", fontsize=SMALL)
    for field, run in groupby(cells, key=lambda cell: cell[2]):
        bits = [bit for bit, _, _ in run]
        # Frames tell fields apart in print, too, where tints look alike.
        outline = Rectangle(
            (bits[0] - 0.5, place - 0.2),
            len(bits),
            0.5,
            fill=False,
            edgecolor=colours[field],
            lw=1.6,
        )
        axis.add_patch(outline)
        middle = (bits[0] + bits[-1]) / 2
        axis.text(middle, place - 0.28, field, ha="center", va="bottom", fontsize=SMALL)
    decoded = f"= {_digits(part['decoded'].iloc[0], 6)}"
    end = max(bit for bit, _, _ in cells) + 0.7
    axis.text(end, place + 0.05, decoded, ha="left", va="center", fontsize=SMALL)
