"""Error over training."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from qmaps.figures.style import axes, legend_below, look, mark, new, require, styled

NEEDED = ("panel", "run", "step", "train", "test")
LINEAR = 1.0
"""Up to this percentage an axis is linear, and logarithmic above it."""
TICKS = (0, 0.5, 1, 2, 5, 10, 20, 50, 100)


@styled
def error_curves(frame: pd.DataFrame, *, error: str = "images in error") -> Figure:
    """Error on training and on test data over training, a row of panels for each net.

    Error axes are linear up to 1 % and logarithmic above it, for both the first steps and the last.

    Args:
        frame: `panel` (name of the net), `run` (label), `step` (optimizer steps), `train` and
            `test` (errors as fractions, 0 to 1); one row per panel, run and step. With `train_std`
            and `test_std`, standard deviations over seeds, a band is drawn around each mean.
        error: label of the error axes, without the unit.

    Raises:
        BadValueError: columns or rows are missing.

    Source: 8-bit approximations for parallelism, figure 2.
    """
    require(frame, NEEDED, "error_curves")
    panels = list(frame["panel"].unique())
    runs = list(frame["run"].unique())
    figure = new(9, 3.0 * len(panels) + 0.6)
    grid = axes(figure, len(panels), 2, sharex="row", sharey="row")
    for row, panel in zip(grid, panels, strict=True):
        part = frame[frame["panel"] == panel]
        for index, run in enumerate(runs):
            curve = part[part["run"] == run].sort_values("step")
            every = max(1, len(curve) // 8)
            style = look(index) | mark(index) | {"markersize": 4.5, "linewidth": 1.3}
            # Marks of overlapping curves are drawn side by side.
            style["markevery"] = (index * every // len(runs), every)
            for axis, split in zip(row, ("train", "test"), strict=True):
                axis.plot(curve["step"], 100 * curve[split], **style)
                if f"{split}_std" in curve:
                    low, high = (curve[split] + k * curve[f"{split}_std"] for k in (-1, 1))
                    axis.fill_between(
                        curve["step"], 100 * low, 100 * high, color=style["color"], alpha=0.15, lw=0
                    )
        for axis, split in zip(row, ("training", "test"), strict=True):
            axis.set_title(f"{panel}: {split} data", loc="left")
            axis.set_yscale("symlog", linthresh=LINEAR, linscale=0.6)
            top = 120 * float(part[["train", "test"]].max().max())
            axis.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
            axis.set_ylim(0, max(top, LINEAR))
            axis.minorticks_off()
        row[0].set_ylabel(f"{error} (%)")
    for axis in grid[-1]:
        axis.set_xlabel("step")
    handles = [
        Line2D([], [], label=str(run), **(look(index) | mark(index)))
        for index, run in enumerate(runs)
    ]
    legend_below(figure, handles, 3)
    return figure
