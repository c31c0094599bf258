"""Measures of a monitor over a run."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from qmaps.errors import BadValueError
from qmaps.figures.declare import figure
from qmaps.figures.style import SMALL, axes, legend_below, look, new, require

MEASURES = {
    "sqnr_db": "signal to noise (dB)",
    "stalled_share": "stalled elements\n(share of moved ones)",
    "saturated_share": "saturated elements (share)",
    "zero_point_share": "zero points (share)",
    "update_median_rel_error": "median error of the update\n(fraction)",
    "stuck_share": "second moments that cannot fall\n(share)",
}
"""Columns of the panels, and their labels."""
LIMITS = {
    "sqnr_db": 10.0,
    "stalled_share": 0.9,
    "saturated_share": 0.2,
    "zero_point_share": 0.0,
    "update_median_rel_error": 0.5,
    "stuck_share": 0.25,
}
"""Default limits of `qmaps.capture.Thresholds`."""
LIMIT: dict[str, Any] = {"color": "#444444", "linestyle": (0, (1, 2)), "linewidth": 1.2}
"""Look of a limit."""
NEEDED = ("step", "parameter", "state", "quantizer", *MEASURES)


@figure(file="monitor.csv")
def monitor(frame: pd.DataFrame) -> Figure:
    """Measures of `qmaps.Monitor` over the steps, a panel each.

    A line is the median over the parameters of a state, in a band from the lowest to the highest.
    Titles name the parameter that is the worst at the last step. Dotted lines are the limits
    from which on a monitor warns by default.

    Args:
        frame: rows of a monitor's CSV file: `step`, `parameter`, `state`, `quantizer`, `sqnr_db`,
            `stalled_share`, `saturated_share`, `zero_point_share`, `update_median_rel_error` and
            `stuck_share`; a measure may be NaN.

    Raises:
        BadValueError: columns or rows are missing, or a column of numbers holds text.
    """
    require(frame, NEEDED, "monitor")
    for name in ("step", *MEASURES):
        if not pd.api.types.is_numeric_dtype(frame[name]):
            raise BadValueError(f"frame has text in the column {name}; monitor needs numbers")
    figure = new(11, 6.2)
    grid = axes(figure, 2, 3, sharex=True)
    panels = [axis for row in grid for axis in row]
    states = list(frame["state"].unique())
    for axis, (measure, label) in zip(panels, MEASURES.items(), strict=True):
        axis.set_ylabel(label)
        for index, state in enumerate(states):
            _band(axis, frame.loc[frame["state"] == state], measure, look(index))
        if measure in LIMITS:
            axis.axhline(LIMITS[measure], **LIMIT)
            axis.set_title(_worst(frame, measure), fontsize=SMALL, color="#444444", loc="left")
        if measure == "zero_point_share" and not (frame[measure] > 0).any():
            axis.set_ylim(-0.02, 1)
    for axis in grid[1]:
        axis.set_xlabel("step")
    quantizers = frame.groupby("state", sort=False)["quantizer"].unique()
    handles = [
        Line2D([], [], label=f"{state}: {', '.join(map(str, quantizers[state]))}", **look(index))
        for index, state in enumerate(states)
    ]
    legend_below(figure, [*handles, Line2D([], [], label="limit of a warning", **LIMIT)], 3)
    return figure


def _band(axis: Axes, rows: pd.DataFrame, measure: str, style: dict[str, Any]) -> None:
    """The median over parameters, and a band from the lowest of them to the highest."""
    steps = rows.dropna(subset=[measure]).groupby("step")[measure].agg(["median", "min", "max"])
    if len(steps):
        marker = "o" if len(steps) == 1 else ""
        axis.plot(steps.index, steps["median"], linewidth=1.4, marker=marker, **style)
        axis.fill_between(steps.index, steps["min"], steps["max"], color=style["color"], alpha=0.18)


def _worst(frame: pd.DataFrame, measure: str) -> str:
    """The parameter with the worst value at the last step; empty if there is none."""
    last = frame[frame["step"] == frame["step"].max()].dropna(subset=[measure])
    if last.empty:
        return ""
    values = last[measure]
    row = last.loc[values.idxmin() if measure == "sqnr_db" else values.idxmax()]
    name = str(row["parameter"])
    return (
        f"worst at the end: {name if len(name) <= 24 else f'...{name[-21:]}'}, {row[measure]:.3g}"
    )
