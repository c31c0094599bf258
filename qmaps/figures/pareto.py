"""Error against storage."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from qmaps.figures._style import COLOURS, MARKERS, axes, new, require


def pareto(frame: pd.DataFrame) -> Figure:
    """Every quantizer's error over its bits per element, the frontier, and the limit.

    Args:
        frame: of `qmaps.analyze.pareto`: `quantizer`, `map`, `bits_per_element`, `error`,
            `error_name` (label of the axis), `on_frontier`, `is_limit`.
    """
    needed = "quantizer normalizer map bits_per_element error error_name on_frontier is_limit"
    require(frame, needed.split(), "pareto")
    figure = new(9.5, 5.6)
    axis = axes(figure, 1, 1)[0][0]
    drawn = frame[~frame["is_limit"]]
    for index, (name, rows) in enumerate(drawn.groupby("map", sort=False)):
        axis.scatter(
            rows["bits_per_element"],
            rows["error"],
            s=34,
            color=COLOURS[index % len(COLOURS)],
            marker=MARKERS[index % len(MARKERS)],
            label=str(name),
            alpha=0.85,
            linewidths=0,
        )
    frontier = drawn[drawn["on_frontier"]].sort_values("bits_per_element")
    axis.plot(
        frontier["bits_per_element"],
        frontier["error"],
        color="#444444",
        linewidth=1.0,
        label="Pareto frontier",
        zorder=0,
    )
    limits = frame[frame["is_limit"]].sort_values("bits_per_element")
    for index, (normalizer, limit) in enumerate(limits.groupby("normalizer", sort=False)):
        axis.plot(
            limit["bits_per_element"],
            limit["error"],
            color="#000000",
            linestyle=("--", ":", "-.")[index % 3],
            marker="_",
            linewidth=1.2,
            label=f"Lloyd-Max limit ({normalizer})",
        )
    axis.set_yscale("log")
    _annotate(axis, frontier)
    axis.set_xlabel("bits per element, scales and codebooks included")
    axis.set_ylabel(str(frame["error_name"].iloc[0]))
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def _annotate(axis: object, frontier: pd.DataFrame) -> None:
    """Name the frontier's points, leaving out those that would lie on the last name."""
    last = -10.0
    for row in frontier.itertuples():
        if row.bits_per_element - last < 0.55:  # type: ignore[operator]
            continue
        last = float(row.bits_per_element)  # type: ignore[arg-type]
        axis.annotate(  # type: ignore[attr-defined]
            str(row.quantizer),
            (row.bits_per_element, row.error),
            xytext=(4, -12),
            textcoords="offset points",
            fontsize=9,
            color="#333333",
        )
