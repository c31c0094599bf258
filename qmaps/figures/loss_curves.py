"""Loss over training."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from qmaps.figures._style import COLOURS, DASHES, MARKERS, axes, new, require


def loss_curves(frame: pd.DataFrame, *, unit: str = "nats") -> Figure:
    """Training and validation loss of several runs, and the difference to the first.

    Args:
        frame: `run` (label), `seed`, `step`, `split` ("train" or "val"), `loss`, and
            `difference`, the loss minus that of the first run at the same step and seed.
        unit: of the loss.

    Source: 4-bit optimizers, figure 4.
    """
    require(frame, ("run", "seed", "step", "split", "loss", "difference"), "loss_curves")
    figure = new(11, 4.0)
    train, validation, difference = axes(figure, 1, 3)[0]
    for index, (name, rows) in enumerate(frame.groupby("run", sort=False)):
        style: dict[str, Any] = {
            "color": COLOURS[index % len(COLOURS)],
            "linestyle": DASHES[index % 4],
        }
        marker: dict[str, Any] = {"marker": MARKERS[index % len(MARKERS)], "markersize": 4}
        for number, (_, part) in enumerate(rows.groupby("seed", sort=False)):
            label = str(name) if number == 0 else None
            on_train = part[part["split"] == "train"]
            held_out = part[part["split"] == "val"]
            train.plot(on_train["step"], on_train["loss"], linewidth=0.9, label=label, **style)
            validation.plot(held_out["step"], held_out["loss"], linewidth=1.3, **style, **marker)
            if index:
                difference.plot(
                    held_out["step"], held_out["difference"], linewidth=1.3, **style, **marker
                )
    difference.axhline(0, color="#444444", linewidth=0.8)
    first = str(frame["run"].iloc[0])
    for axis, label in (
        (train, f"training loss ({unit})"),
        (validation, f"validation loss ({unit})"),
        (difference, f"validation loss minus {first} ({unit})"),
    ):
        axis.set_xlabel("step")
        axis.set_ylabel(label)
    handles, labels = train.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)))
    return figure
