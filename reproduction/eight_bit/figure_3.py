"""Figure 3: sensitivity to hyperparameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from qmaps import figures
from qmaps.lab import workloads
from qmaps.lab.compare import Contender
from qmaps.lab.report.claim import Claim
from qmaps.lab.workloads import Workload
from reproduction.context import BASE, Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.numbers import number

EIGHT_BIT = Contender("8-bit AdamW (B2048/DE)", "paper-8bit")
RATE = 3e-3
"""Of our model; the other three are the paper's."""
VALUES: dict[str, tuple[float, ...]] = {
    "lr": (0.5 * RATE, RATE, 2 * RATE),
    "beta1": (0.87, 0.9, 0.93),
    "beta2": (0.99, 0.995, 0.999),
    "eps": (1e-8, 1e-7, 1e-6),
}
BASES = {"lr": RATE, "beta1": 0.9, "beta2": 0.995, "eps": 1e-7}
SEEDS = 2


def variants(name: str) -> Iterator[tuple[str, float, Workload]]:
    """Each hyperparameter at each of its values, the others at their bases."""
    plain = workloads.get(name, stable_embedding=True)
    for parameter, values in VALUES.items():
        for value in values:
            chosen = {**BASES, parameter: value}
            betas = (chosen["beta1"], chosen["beta2"])
            yield (
                parameter,
                value,
                replace(plain, lr=chosen["lr"], betas=betas, eps=chosen["eps"]),
            )


def build(context: Context) -> Frames:
    """Final losses; the base is trained once."""
    rows = []
    for parameter, value, work in variants(context.size.grid):
        if context.quick and parameter != "lr":
            continue
        folder = f"figure-3/lr{work.lr:g}-{work.betas[0]:g}-{work.betas[1]:g}-eps{work.eps:g}"
        seeds = range(1 if context.quick else SEEDS)
        rows += [
            {
                "parameter": parameter,
                "value": value,
                "run": run.label,
                "seed": run.seed,
                "loss": run.final["loss"],
            }
            for run in context.trained(work, [BASE, EIGHT_BIT], seeds, folder=folder)
        ]
    return {"losses": pd.DataFrame(rows)}


def find(frames: Frames) -> Finding:
    """Whether the distance between 8 and 32 bits stays."""
    losses = frames["losses"]
    by_run = losses.pivot_table(index=["parameter", "value", "seed"], columns="run", values="loss")
    gap = (by_run[EIGHT_BIT.label] - by_run[BASE.label]).groupby(["parameter", "value"]).mean()
    means = by_run[BASE.label].groupby(["parameter", "value"]).mean()
    changes = float(means.max() - means.min())
    return Finding(
        statements=[
            Claim(
                "The gap between 8-bit and 32-bit Adam is steady over hyperparameters.",
                float(gap.max() - gap.min()) < 0.25 * changes,
                f"It lies between {gap.min():+.4f} and {gap.max():+.4f} nats per byte, while the "
                f"loss of 32 bits changes by {number(changes)}.",
            )
        ],
        why="The gap is called steady if its range is less than a quarter of what the "
        "hyperparameters "
        "change. The model is stdlib-lm-tiny with the stable embedding. The base of the learning "
        "rate is ours, and was not tuned: both losses are lowest at the largest rate.",
        tables={"losses": losses},
    )


EXHIBIT = Exhibit(
    name="figure-3",
    covers=("Figure 3",),
    title="Sensitivity of 8-bit and 32-bit Adam to hyperparameters",
    needs=Needs.TRAINING,
    source="training runs of stdlib-lm-tiny, seeds 0 and 1",
    build=build,
    find=find,
    draw=lambda frames: {"figure-3": figures.sensitivity(frames["losses"], unit="nats per byte")},
    captions={"figure-3": "One hyperparameter changed at a time; a mark for each seed."},
)
