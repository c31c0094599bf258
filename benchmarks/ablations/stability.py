"""Final losses of many runs, and which of them were unstable."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from qmaps.figures.style import COLOURS, axes, legend_below, new, require, styled

STABLE, UNSTABLE = COLOURS[0], COLOURS[1]
NEEDED = ("setting", "loss", "unstable")


@styled
def stability(frame: pd.DataFrame, *, unit: str = "nats", label: str = "") -> Figure:
    """Final loss of every run, one line per setting, and the share of unstable runs.

    Settings are in the frame's order, from the top. The axis spans the losses of stable runs.
    Unstable runs beyond it, and those that ended in NaN, are drawn at its right edge.

    Args:
        frame: `setting` (label), `loss` (final loss), `unstable` (bool); one row per run.
        unit: unit of the loss.
        label: label of the axis of settings.

    Raises:
        BadValueError: columns or rows are missing.

    Source: 8-bit optimizers, table 3; 4-bit optimizers, table 1.
    """
    require(frame, NEEDED, "stability")
    settings = list(frame["setting"].unique())
    figure = new(10, 0.26 * len(settings) + 1.5)
    ((axis, shares),) = axes(figure, 1, 2, sharey=True, width_ratios=(4, 1))
    low, high = _limits(frame)
    for line, setting in enumerate(settings):
        runs = frame[frame["setting"] == setting]
        # Equal losses would hide each other.
        heights = line + 0.5 * (np.arange(len(runs)) / max(len(runs) - 1, 1) - 0.5)
        ends = runs["loss"].fillna(np.inf).clip(upper=high).to_numpy()
        bad = runs["unstable"].to_numpy(dtype=bool)
        axis.plot(ends[~bad], heights[~bad], "o", color=STABLE, markersize=3, alpha=0.7)
        if bad.any():  # the layout would make room for an empty line that is not clipped
            axis.plot(ends[bad], heights[bad], "x", color=UNSTABLE, markersize=4, clip_on=False)
        shares.barh(line, 100 * bad.mean(), color=UNSTABLE, height=0.6)
    axis.set_xlim(low, high)
    axis.set_xlabel(f"final loss ({unit})")
    axis.set_yticks(range(len(settings)), [str(name) for name in settings])
    axis.set_ylabel(label)
    axis.set_ylim(len(settings) - 0.5, -0.5)
    shares.set_xlim(0, 100)
    shares.set_xlabel("unstable runs (%)")
    marks = (("o", STABLE, "stable"), ("x", UNSTABLE, "unstable (at the edge: beyond it, or NaN)"))
    legend_below(
        figure,
        [Line2D([], [], linestyle="", marker=m, color=c, label=label) for m, c, label in marks],
        2,
    )
    return figure


def _limits(frame: pd.DataFrame) -> tuple[float, float]:
    """Ends of the axis: around the stable runs, or all finite losses if no run is stable."""
    finite = frame[np.isfinite(frame["loss"])]
    shown = finite[~finite["unstable"].astype(bool)]["loss"]
    shown = finite["loss"] if shown.empty else shown
    if shown.empty:
        return 0.0, 1.0
    room = 0.05 * (shown.max() - shown.min()) or 1.0
    return float(shown.min() - room), float(shown.max() + room)
