"""Figure 4: loss curves."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.figure import Figure

from qmaps import figures
from qmaps.lab import loss_frame, summarize_losses, workloads
from qmaps.lab.pipeline import PAPER
from reproduction import committed
from reproduction.claim import Claim
from reproduction.context import BASE, FULL, Context
from reproduction.differences import Difference
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.numbers import percent

PAIR = "B128/DE@4s + rank1/linear@4u"
SEEDS = "figure-4-seeds"


def build(context: Context) -> Frames:
    """One seed of the headline, all seeds of the grid's workload."""
    name = context.size.headline
    runs = context.trained(name, [BASE, PAPER], [0])
    grid = context.trained(context.size.grid, [BASE, PAPER], range(context.size.seeds))
    return {
        "curves": loss_frame(runs).assign(unit=workloads.get(name).unit),
        "seeds": loss_frame(grid).assign(unit=workloads.get(context.size.grid).unit),
        "losses": pd.concat(
            [
                summarize_losses(runs).assign(workload=name),
                summarize_losses(grid).assign(workload=context.size.grid),
            ],
            ignore_index=True,
        ),
        "judges": committed.by_task(context),
    }


def find(frames: Frames) -> Finding:
    """Compare the final losses."""
    losses = frames["losses"].drop_duplicates(["workload", "run"])
    by_task = frames["judges"][frames["judges"]["quantizer"] == PAIR]
    worst, statements, behind = float(by_task["high"].max()), [], []
    for workload, rows in losses.groupby("workload", sort=False):
        by_run = rows.set_index("run").to_dict("index")
        base, low_bits = float(by_run[BASE.label]["mean"]), by_run[PAPER.label]
        low, high = committed.from_summary(low_bits)
        behind.append(float(low_bits["difference"]) if low > worst else math.inf)
        seeds = int(low_bits["seeds"])
        statements.append(
            Claim(
                f"The loss of 4-bit AdamW is aligned with that of 32 bits, at a rate that was not "
                f"tuned ({workload}, {'1 seed' if seeds == 1 else f'{seeds} seeds'}).",
                committed.within(low, high, base) if seeds > 1 else (),
                f"Final validation loss {low_bits['mean']:.4f} against {base:.4f}, "
                f"{percent(float(low_bits['mean']) / base - 1)} more.",
            )
        )
    return Finding(
        statements=statements,
        differences=[
            Difference(
                f"At the rate that is best for 32 bits, the same pair ends at most {worst:.4f} "
                f"nats behind on {len(by_task)} judges (the highest upper end of their 95 % "
                "intervals; "
                "Table 2), among them the same model. In few steps at a low rate a 4-bit first "
                "moment that is rounded to nearest moves late "
                "(reports/losses/four-bit-moments.md).",
                worst < min(behind) / 2,
                "not tuned",
            )
        ],
        why="The paper fine-tunes LLaMA-7B. The curves are those of models that are trained from "
        "scratch for a few hundred steps. Aligned: the whole 95 % interval of the "
        "difference over seeds lies within the margin; the curve of one seed proves nothing. "
        "The judges (reports/judges.md) are a pretrained "
        "encoder, a small model that goes on from trained weights, and small models from scratch.",
        tables={"losses": losses, "judges": frames["judges"]},
    )


def draw(frames: Frames) -> dict[str, Figure]:
    """The curves of one seed of a larger net, and of several seeds of a small one."""
    short = {PAPER.label: "4-bit AdamW"}
    drawn = {"figure-4": frames["curves"], SEEDS: frames["seeds"]}
    return {name: figures.loss_curves(curves.replace(short)) for name, curves in drawn.items()}


EXHIBIT = Exhibit(
    name="figure-4",
    covers=("Figure 4",),
    title="Training loss of 4-bit and of 32-bit AdamW",
    needs=Needs.TRAINING,
    source="training runs of {headline}, and of {grid}",
    build=build,
    find=find,
    draw=draw,
    captions={
        "figure-4": f"{FULL.headline}, one seed: the same weights and batches for both. On the "
        f"right the distance to 32 bits. 4-bit AdamW is {PAIR}.",
        SEEDS: f"{FULL.grid}, {FULL.seeds} seeds: lines are means, bands reach from the lowest to "
        "the highest.",
    },
)
