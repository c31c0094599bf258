"""Error against storage, with the names of the best."""

from __future__ import annotations

from textwrap import fill

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from qmaps.figures.declare import Picture, figure
from qmaps.figures.style import SMALL, axes, legend_below, mark, new, require

COLUMNS = (
    *("quantizer", "normalizer", "map", "bits_per_element"),
    *("error", "error_name", "on_frontier", "is_limit"),
)
WIDTH = 32
"""Characters of a line of names."""
LIMITS = ((0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1, 2)), (0, (1, 2)), (0, (9, 3)))
"""Dashes of the limits."""


@figure(
    Picture(
        "pareto_exp_avg",
        "Error against storage: first moment",
        "All tensors together. The dashed line is the least-squares optimum of its width, which "
        "no other map under the same normalizer can pass.",
        place=60,
    ),
    Picture("pareto_exp_avg_sq", "Error against storage: second moment", "As above.", place=70),
)
def pareto(frame: pd.DataFrame) -> Figure:
    """Every quantizer's error over its bits per state element, the frontier, and the limit.

    Each quantizer but Lloyd-Max has a marker that shows its map. The frontier is drawn as steps;
    its points have numbers, and their names stand at the side. One dashed line per normalizer shows
    the error of the fitted Lloyd-Max codebook, which no other codebook of its width can beat.

    Args:
        frame: of `qmaps.analyze.pareto`: `quantizer`, `normalizer`, `map` (names),
            `bits_per_element` (bits, scales and codebooks included), `error` (in the unit that
            `error_name` names), `error_name` (label of the axis), `on_frontier` (bool: named),
            `is_limit` (bool: Lloyd-Max, drawn as a line).

    Raises:
        BadValueError: columns or rows are missing.

    Source: not from a paper; it shows the best quantizer for a number of bits.
    """
    require(frame, COLUMNS, "pareto")
    figure = new(10.5, 6.6)
    axis = axes(figure, 1, 1)[0][0]
    is_limit = frame["is_limit"].astype(bool)
    drawn, limits = frame[~is_limit], frame[is_limit]
    for index, (name, rows) in enumerate(drawn.groupby("map", sort=False)):
        axis.scatter(
            rows["bits_per_element"],
            rows["error"],
            s=32,
            label=str(name),
            alpha=0.9,
            edgecolors="white",
            linewidths=0.4,
            zorder=3,
            **mark(index),
        )
    frontier = drawn[drawn["on_frontier"].astype(bool)].sort_values("bits_per_element")
    if len(frontier):
        axis.plot(
            frontier["bits_per_element"],
            frontier["error"],
            color="#444444",
            linewidth=1.2,
            drawstyle="steps-post",
            label="Pareto frontier",
            zorder=2,
        )
    for number, (normalizer, rows) in enumerate(limits.groupby("normalizer", sort=False)):
        ordered = rows.sort_values("bits_per_element")
        axis.plot(
            ordered["bits_per_element"],
            ordered["error"],
            color="#000000",
            linestyle=LIMITS[number % len(LIMITS)],
            marker="_",
            markersize=5,
            linewidth=0.9,
            label=f"Lloyd-Max limit ({normalizer})",
            zorder=1,
        )
    axis.set_yscale("log")
    axis.margins(x=0.06, y=0.08)
    axis.set_xlabel("bits per state element, scales and codebooks included")
    axis.set_ylabel(str(frame["error_name"].iloc[0]))
    legend_below(figure, axis.get_legend_handles_labels()[0], 5)
    named = frontier[frontier["error"] > 0]
    for number, at in enumerate(zip(named["bits_per_element"], named["error"], strict=True), 1):
        axis.annotate(
            str(number),
            at,
            xytext=(-4, -4),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=SMALL,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
            zorder=6,
        )
    names = [fill(f"{n}  {spec}", WIDTH) for n, spec in enumerate(named["quantizer"], 1)]
    if names:
        handles = [Line2D([], [], linestyle="", label=name) for name in names]
        figure.legend(handles=handles, loc="outside right upper", handlelength=0, frameon=False)
    return figure
