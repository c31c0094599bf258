"""Figure 4: loss curves."""

from __future__ import annotations

import pandas as pd

from qmaps import figures
from qmaps.lab import loss_frame, summarize_losses, workloads
from qmaps.lab.report.claim import Claim
from qmaps.lab.run import PAPER
from reproduction.context import BASE, Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.numbers import percent

CLOSE = 0.02
"""Losses that differ by less than this share are called aligned."""


def build(context: Context) -> Frames:
    """One seed of the headline, all seeds of the grid's workload."""
    name = context.size.headline
    runs = context.trained(name, [BASE, PAPER], [0])
    grid = context.trained(context.size.grid, [BASE, PAPER], range(context.size.seeds))
    return {
        "curves": loss_frame(runs).assign(unit=workloads.get(name).unit),
        "losses": pd.concat(
            [
                summarize_losses(runs).assign(workload=name),
                summarize_losses(grid).assign(workload=context.size.grid),
            ],
            ignore_index=True,
        ),
    }


def find(frames: Frames) -> Finding:
    """How far apart the ends are."""
    losses = frames["losses"].drop_duplicates(["workload", "run"])
    statements = []
    for workload, rows in losses.groupby("workload", sort=False):
        means = rows.set_index("run")["mean"]
        apart = float(means[PAPER.label] / means[BASE.label] - 1)
        seeds = int(rows["seeds"].iloc[0])
        statements.append(
            Claim(
                f"The loss of 4-bit AdamW is aligned with that of 32 bits ({workload}, "
                f"{seeds} seed{'s' if seeds > 1 else ''}).",
                abs(apart) < CLOSE,
                f"Final validation loss {means[PAPER.label]:.4f} against "
                f"{means[BASE.label]:.4f}, {percent(apart)} more.",
            )
        )
    return Finding(
        statements=statements,
        why="The paper fine-tunes LLaMA-7B; these models are trained from scratch for a few "
        "hundred steps, in which a 4-bit first moment that is rounded to nearest moves late "
        "(reports/parity-first-moment.md). Aligned: within "
        f"{percent(CLOSE)} at the end.",
        tables={"losses": losses},
    )


EXHIBIT = Exhibit(
    name="figure-4",
    covers=("Figure 4",),
    title="Training loss of 4-bit and of 32-bit AdamW",
    needs=Needs.TRAINING,
    source="training runs of {headline}, and of {grid}",
    build=build,
    find=find,
    draw=lambda frames: {"figure-4": figures.loss_curves(frames["curves"])},
    captions={"figure-4": "Same weights and batches; right: the distance to 32 bits."},
)
