"""Results as a picture: one line for each case, ratios to peers, floors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

COLOURS = ("#4269d0", "#efb118", "#ff725c", "#3ca951", "#a463f2", "#6cc5b0", "#9c6b4e", "#97bbf5")
OTHER = "#9498a0"
"""Peers beyond the colours at hand."""
MARKERS = "os^DvPX*"
"""Peers are told apart by these too, without colours."""


Look = tuple[str, str]
"""A colour and a marker."""


def draw(results: dict[str, Any], path: Path) -> None:
    """Write a PNG with a row for each case with ratios, in their order from the top."""
    rows = [row for row in results["cases"] if row["ratios"]]
    figure = Figure(figsize=(11, 2 + 0.42 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    handles = ratios(figure.add_subplot(), rows)
    if rows:
        figure.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False)
    figure.savefig(path, format="png", dpi=110)


def ratios(axes: Axes, rows: Sequence[dict[str, Any]]) -> list[Line2D]:
    """Draw the ratios to peers, one line for each row; return the entries of the legend."""
    peers = list(dict.fromkeys(peer for row in rows for peer in row["ratios"]))
    looks = {
        peer: (COLOURS[i] if i < len(COLOURS) else OTHER, MARKERS[i % len(MARKERS)])
        for i, peer in enumerate(peers)
    }
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=0.8)
    for line, row in enumerate(rows):
        _line(axes, line, row, looks)
    name_lines(axes, [row["name"] for row in rows])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.set_xlabel("time of the peer / time of qmaps (more than 1: qmaps is faster)")
    return _legend(looks, floors=any(row["floors"] for row in rows))


def name_lines(axes: Axes, names: Sequence[str]) -> None:
    """Give each line of a picture its name, the first one on top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(max(len(names), 1) - 0.5, -0.5)
    axes.grid(axis="both", color="#e4e4e4")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _line(axes: Axes, line: int, row: dict[str, Any], looks: dict[str, Look]) -> None:
    for peer, value in row["ratios"].items():
        (colour, marker), missed = looks[peer], row["reached"].get(peer) is False
        axes.plot([value["q1"], value["q3"]], [line, line], color=colour, linewidth=2.5, alpha=0.5)
        face = "white" if missed else colour
        axes.plot(value["ratio"], line, marker, color=colour, markerfacecolor=face, markersize=7)
        if (floor := row["floors"].get(peer)) is not None:
            axes.plot(floor, line, "|", color=colour, markersize=17, markeredgewidth=2.5)


def _legend(looks: dict[str, Look], *, floors: bool) -> list[Line2D]:
    style = {"linestyle": "none", "markersize": 7}
    handles = [
        Line2D([], [], marker=marker, color=colour, label=peer, **style)
        for peer, (colour, marker) in looks.items()
    ]
    if not floors:
        return handles
    grey = {"color": "#555555", "linestyle": "none"}
    bar = Line2D([], [], marker="|", markersize=13, markeredgewidth=2.5, label="floor", **grey)
    hollow = Line2D(
        [], [], marker="o", markersize=7, markerfacecolor="white", label="below its floor", **grey
    )
    return [*handles, bar, hollow]
