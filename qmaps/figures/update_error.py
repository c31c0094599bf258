"""Errors of the Adam update of many pairs of quantizers."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from qmaps.figures.declare import Picture, figure
from qmaps.figures.style import COLOURS, legend_below, new, panels, require

POINTS = (
    ("median", "median", "o", COLOURS[0]),
    ("mean", "mean", "D", COLOURS[1]),
    ("p99", "99th percentile", "|", COLOURS[2]),
    ("max", "largest", "x", COLOURS[6]),
)
"""Prefix of the column, name, marker, and colour."""
NEEDED = ("quantizer", "mean_abs_error", *(f"{name}_rel_error" for name, *_ in POINTS))


@figure(
    Picture(
        "update_error",
        "Error of the Adam update",
        "u = m / (sqrt(v) + eps) without bias correction. Relative errors are |Δu| / |u| over "
        "elements with u ≠ 0; their mean is ruled by updates near zero, so the median stands "
        "beside it. A mean right of the 99th percentile is made by fewer than one element in a "
        "hundred.",
        place=20,
        stacks=True,
    )
)
def update_error(frame: pd.DataFrame, *, stacked: bool = False) -> Figure:
    """Median, mean, 99th percentile and largest error, one line per pair of quantizers.

    Rows are in the frame's order, from the top. The scale is logarithmic: an error of exactly
    0 is not drawn. A pair that is a preset has its name too.

    Args:
        frame: of `qmaps.analyze.update_error`: `quantizer`, `mean_abs_error` (of
            u = m / (sqrt(v) + eps)), `median_rel_error`, `mean_rel_error`, `p99_rel_error`,
            `max_rel_error` (fractions of |u|). `median_abs_error`, `p99_abs_error` and
            `max_abs_error` are drawn if they are there, and so are names in `preset`.
        stacked: whether panels stand below each other, for a narrow screen.

    Raises:
        BadValueError: columns or rows are missing.

    Source: 8-bit optimizers, table 6 and appendix C.
    """
    require(frame, NEEDED, "update_error")
    rows = len(frame)
    figure = new(4.6, 0.8 * rows + 2) if stacked else new(11, 0.28 * rows + 1.6)
    absolute, relative = panels(figure, 2, stacked=stacked, sharey=True)
    for axis, kind, label in (
        (absolute, "abs", "|Δu|, u = m / (sqrt(v) + eps)"),
        (relative, "rel", "|Δu| / |u| (fraction)"),
    ):
        _draw(axis, frame, kind)
        axis.set_xscale("log")
        axis.set_xlabel(label)
    places = list(range(len(frame)))[::-1]
    absolute.set_yticks(places, names_of(frame, " +\n" if stacked else " + "))
    absolute.set_ylim(-0.6, len(frame) - 0.4)
    handles = [
        Line2D([], [], linestyle="", marker=marker, color=colour, label=name, markersize=6)
        for _, name, marker, colour in POINTS
    ]
    legend_below(figure, handles, 2 if stacked else len(handles))
    return figure


def names_of(frame: pd.DataFrame, between: str = " + ") -> list[str]:
    """The quantizers of a frame, presets by name."""
    presets = frame["preset"] if "preset" in frame.columns else [""] * len(frame)
    return [
        f"{name}{f' ({preset})' if preset else ''}".replace(" + ", between)
        for name, preset in zip(frame["quantizer"], presets, strict=True)
    ]


def _draw(axis: Axes, frame: pd.DataFrame, kind: str) -> None:
    """Marks of one kind of error, those of the frame's first row at the top."""
    places = range(len(frame))[::-1]
    present = [name for name, *_ in POINTS if f"{name}_{kind}_error" in frame.columns]
    for start, end, colour, width in (
        ("median", "p99", "#BBBBBB", 2),
        ("p99", "max", "#CCCCCC", 1),
    ):
        if start in present and end in present:
            ends = frame[f"{start}_{kind}_error"], frame[f"{end}_{kind}_error"]
            axis.hlines(places, *ends, color=colour, linewidth=width, zorder=1)
    for name, _, marker, colour in POINTS:
        if name in present:
            axis.plot(
                frame[f"{name}_{kind}_error"],
                places,
                linestyle="",
                marker=marker,
                markersize={"|": 9, "x": 5}.get(marker, 6),
                color=colour,
                zorder=3,
            )
