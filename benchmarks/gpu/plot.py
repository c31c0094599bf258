"""Results of a device as a picture: shares of the bound on the left, ratios on the right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.case import OURS
from benchmarks.plot import COLOURS, name_lines, ratios

Row = dict[str, Any]


def draw(results: dict[str, Any], path: Path) -> None:
    """Write a PNG with a line for each case, in their order from the top."""
    rows = [row for row in results["cases"] if row["values"]]
    figure = Figure(figsize=(17, 2 + 0.36 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    handles = ratios(right, rows)
    _shares(left, rows)
    if rows:
        figure.legend(handles=handles, loc="outside upper center", ncols=5, frameon=False)
    figure.savefig(path, format="png", dpi=110)


def _shares(axes: Axes, rows: Sequence[Row]) -> None:
    for line, row in enumerate(rows):
        if (share := row["share_of_bound"].get(OURS)) is None:
            continue
        goals = [goal["asked"] for goal in row["goals"] if goal["what"].startswith("share")]
        missed = any(share < goal for goal in goals)
        face = "white" if missed else COLOURS[0]
        axes.barh(line, share, height=0.6, color=face, edgecolor=COLOURS[0])
        for goal in goals:
            axes.plot(goal, line, "|", color="black", markersize=17, markeredgewidth=2.5)
    axes.axvline(1, color="black", linewidth=0.8)
    name_lines(axes, [row["name"] for row in rows])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel(
        "qmaps: time of a copy of as many bytes / time (bar: the goal; hollow: below it)"
    )
