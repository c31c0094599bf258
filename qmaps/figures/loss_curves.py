"""Loss over training."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from qmaps.errors import BadValueError
from qmaps.figures.declare import Picture, figure
from qmaps.figures.style import legend_below, look, mark, new, panels, require

SEVERAL = 3
"""Seeds from which on a run is a band."""
SPLITS = ("train", "val")


@figure(
    Picture(
        "loss_curves",
        "Training with quantized states",
        "Loss curves of the same model and batches; the last panel shows the distance to 32 bits.",
        place=10,
        stacks=True,
    )
)
def loss_curves(frame: pd.DataFrame, *, stacked: bool = False) -> Figure:
    """Training and validation loss of several runs, and the difference to the first.

    Every seed is a line of its own; from three seeds on a line is the mean over them, in a band
    from the lowest to the highest. Nothing is smoothed here.

    Args:
        frame: `run` (label), `seed`, `step` (optimizer steps), `split` ("train" or "val"),
            `loss`; one row per run, seed, step and split. Three columns are optional. `smoothed`
            (the smoothed training loss, in the same unit) is drawn over a faint `loss`, and in its
            place where there is a band.
            `difference` (the loss minus that of the first run at the same step and seed) is drawn
            in a third panel, for the validation loss. `unit` labels the axes, else "nats".
        stacked: whether panels stand below each other, for a narrow screen.

    Raises:
        BadValueError: columns or rows are missing, or a split is neither "train" nor "val".

    Source: 4-bit optimizers, figure 4.
    """
    require(frame, ("run", "seed", "step", "split", "loss"), "loss_curves")
    strange = [split for split in frame["split"].unique() if split not in SPLITS]
    if strange:
        raise BadValueError(
            f"frame has split={str(strange[0])!r}; a split must be 'train' or 'val'"
        )
    unit = str(frame["unit"].iloc[0]) if "unit" in frame.columns else "nats"
    compared = "difference" in frame.columns
    count = 3 if compared else 2
    figure = new(4.8, 3.2 * count + 0.6) if stacked else new(11 if compared else 8.5, 4.2)
    train, validation, *difference_axes = panels(figure, count, stacked=stacked)
    smooth = "smoothed" in frame.columns
    handles = []
    for index, (name, rows) in enumerate(frame.groupby("run", sort=False)):
        style = look(index)
        dotted = style | mark(index) | {"markersize": 4, "linewidth": 1.2}
        handles.append(Line2D([], [], label=str(name), **dotted))
        thick = style | {"linewidth": 1.2}
        lines = [(train, "train", "smoothed" if smooth else "loss", thick)]
        lines += [(validation, "val", "loss", dotted)]
        lines += [(axis, "val", "difference", dotted) for axis in difference_axes if index]
        if rows["seed"].nunique() >= SEVERAL:
            for axis, split, column, shown in lines:
                _band(axis, rows[rows["split"] == split], column, shown)
            continue
        faint = {"linewidth": 0.6, "alpha": 0.25} if smooth else {"linewidth": 0.9, "alpha": 0.9}
        lines[: 1 - smooth] = [(train, "train", "loss", style | faint)]
        for _, part in rows.sort_values("step").groupby("seed", sort=False):
            for axis, split, column, shown in lines:
                of_split = part[part["split"] == split]
                axis.plot(of_split["step"], of_split[column], **shown)
    train.set_ylabel(f"training loss ({unit})")
    validation.set_ylabel(f"validation loss ({unit})")
    if difference_axes:
        difference_axes[0].axhline(0, color="#444444", linewidth=0.8)
        first = str(frame["run"].iloc[0])
        difference_axes[0].set_ylabel(f"validation loss minus that of\n{first} ({unit})")
    for axis in (train, validation, *difference_axes):
        axis.set_xlabel("step")
    legend_below(figure, handles, 1 if stacked else 4)
    return figure


def _band(axis: Axes, rows: pd.DataFrame, column: str, style: dict[str, Any]) -> None:
    """The mean over seeds, and a band from the lowest of them to the highest."""
    seeds = rows.groupby("step")[column].agg(["mean", "min", "max"])
    axis.plot(seeds.index, seeds["mean"], **style)
    axis.fill_between(seeds.index, seeds["min"], seeds["max"], color=style["color"], alpha=0.18)
