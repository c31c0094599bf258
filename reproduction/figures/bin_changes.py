"""Movement of low-precision parameters in a step, over training."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from qmaps.figures.style import axes, legend_below, look, new, require, styled

NEEDED = ("parameter", "width", "setting", "step", "bin_change")
LEAST = 1e-4
"""Below it the axis is linear, as changes may be 0."""


@styled
def bin_changes(frame: pd.DataFrame) -> Figure:
    """Bin change ratio of each parameter over training, a row per parameter, a column per width.

    The ordinate is logarithmic, and linear from 0 to 0.0001; all panels share it.

    Args:
        frame: frames of `benchmarks.lpmm.update_sizes.Underflow.ratios` with two columns added. The
            columns are `parameter` (name), `step` (optimizer steps), `bin_change` (mean distance
            moved in units of delta), `width` (label of the parameters' precision) and `setting`
            (label of how the run rounds).

    Raises:
        BadValueError: columns or rows are missing.

    Source: LPMM, figure 2.
    """
    require(frame, NEEDED, "bin_changes")
    parameters = list(frame["parameter"].unique())
    widths = list(frame["width"].unique())
    settings = list(frame["setting"].unique())
    figure = new(3.2 * len(widths) + 0.8, 1.7 * len(parameters) + 1.0)
    grid = axes(figure, len(parameters), len(widths), sharex=True, sharey=True)
    for row, parameter in zip(grid, parameters, strict=True):
        for axis, width in zip(row, widths, strict=True):
            for number, setting in enumerate(settings):
                part = frame[
                    (frame["parameter"] == parameter)
                    & (frame["width"] == width)
                    & (frame["setting"] == setting)
                ].sort_values("step")
                axis.plot(part["step"], part["bin_change"], linewidth=1.2, **look(number))
        row[0].set_ylabel(parameter)
    for axis, width in zip(grid[0], widths, strict=True):
        axis.set_title(width, loc="left")
    for axis in grid[-1]:
        axis.set_xlabel("step")
    grid[0][0].set_yscale("symlog", linthresh=LEAST, linscale=0.5)
    grid[0][0].set_ylim(0, 2 * max(LEAST, float(frame["bin_change"].max())))
    figure.supylabel("bin change ratio: mean |change| / $\\delta$", fontsize=10)
    handles = [Line2D([], [], label=name, **look(n)) for n, name in enumerate(settings)]
    legend_below(figure, handles, 4)
    return figure
