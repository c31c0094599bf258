"""Final loss over hyperparameters."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from qmaps.figures.style import axes, legend_below, look, mark, new, require, styled

NEEDED = ("parameter", "value", "run", "seed", "loss")
WIDE = 20
"""Values over a larger range than this factor get a logarithmic axis."""


@styled
def sensitivity(frame: pd.DataFrame, *, unit: str = "nats") -> Figure:
    """Final loss of several optimizers, one panel for each hyperparameter.

    Lines join the means over seeds; marks show every seed.

    Args:
        frame: `parameter` (name of the hyperparameter), `value` (its value, above 0), `run`
            (label), `seed`, `loss` (final validation loss); one row per training run.
        unit: unit of the loss.

    Raises:
        BadValueError: columns or rows are missing.

    Source: 8-bit optimizers, figure 3.
    """
    require(frame, NEEDED, "sensitivity")
    parameters = list(frame["parameter"].unique())
    runs = list(frame["run"].unique())
    figure = new(2.7 * len(parameters) + 0.8, 3.4)
    row = axes(figure, 1, len(parameters), sharey=True)[0]
    for axis, parameter in zip(row, parameters, strict=True):
        part = frame[frame["parameter"] == parameter]
        for index, run in enumerate(runs):
            curve = part[part["run"] == run].sort_values("value")
            means = curve.groupby("value")["loss"].mean()
            axis.plot(means.index, means, linewidth=1.4, **look(index))
            axis.plot(
                curve["value"], curve["loss"], linestyle="", markersize=5, alpha=0.8, **mark(index)
            )
        if part["value"].max() > WIDE * part["value"].min():
            axis.set_xscale("log")
        else:
            axis.set_xticks(sorted(part["value"].unique()))
        axis.set_xlabel(str(parameter))
    row[0].set_ylabel(f"final validation loss ({unit})")
    handles = [
        Line2D([], [], label=str(run), **(look(index) | mark(index)))
        for index, run in enumerate(runs)
    ]
    legend_below(figure, handles, 3)
    return figure
