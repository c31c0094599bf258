"""Presets of version 0.3 in a training of 10,000 steps, from the committed rows.

The study is closed; reports/long-run.md names the commit with its command.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.blind.equivalence import in_steps, percent
from benchmarks.version_0_3 import PAIR_OF
from qmaps.lab.workloads import Workload
from qmaps.storage.files import records
from reproduction.tasks import TASKS

REPORTS = Path(__file__).parents[1] / "reports"
TUNING, TRIALS = "long-run-tuning.csv", "long-run.csv"
TASK = "lm-tiny"
WORKLOAD: Workload = replace(TASKS[TASK], steps=10_000, validation_batches=64)  # type: ignore[call-arg]
SHOWN = ("8bit", "4bit", "3bit")
"""Trained presets."""
DEFAULTS: dict[str, float | None] = {"lr": None, "beta1": 0.9, "weight_decay": 0.01}
"""Tuned options, with the field's usual values; None takes the lowest mean."""


def tuned(frame: pd.DataFrame) -> Workload:
    """The workload at the best options in rows of reports/long-run-tuning.csv."""
    best: dict[str, float | None] = {**frame.iloc[0][list(DEFAULTS)], "lr": None}
    for option, default in DEFAULTS.items():
        best[option] = choose(_losses(frame, best, option), default)
    betas = (best["beta1"], WORKLOAD.betas[1])
    return replace(WORKLOAD, lr=best["lr"], betas=betas, weight_decay=best["weight_decay"])  # type: ignore[arg-type]


def choose(losses: pd.DataFrame, default: float | None) -> float:
    """The value of the lowest mean loss, or a near one.

    Chooses the value closest to the default among those with a mean within one standard error of
    the lowest, seed by seed: noise does not move a baseline far from usual values.

    Args:
        losses: one column per value, one row per seed.
        default: the field's usual value; None takes the lowest mean.
    """
    losses = losses.fillna(np.inf)  # of trainings that diverged
    best = float(losses.mean().idxmin())
    if default is None:
        return best
    above = losses.sub(losses[best], axis=0)
    near = [value for value in losses if above[value].mean() <= above[value].sem()]
    return float(min([best, *near], key=lambda value: abs(value - default)))


def _losses(frame: pd.DataFrame, values: Mapping[str, float | None], option: str) -> pd.DataFrame:
    """Losses by seed and value of an option, the others as in `values`; None is any value."""
    remaining = [name for name in DEFAULTS if name != option and values[name] is not None]
    same = (frame[remaining] == [values[name] for name in remaining]).all(axis=1)
    return frame[same].pivot_table("loss", "seed", option)


def compared(frame: pd.DataFrame, work: Workload) -> pd.DataFrame:
    """Rows of `benchmarks.blind.equivalence.in_steps` of the runs of `work`."""
    return in_steps(frame.assign(factor=1.0, length=(frame["steps"] / work.steps).round(9)))


def summary() -> str:
    """The committed differences from 32 bits, with the slope's error and the lengths measured."""
    frame, work = pd.read_csv(REPORTS / TRIALS), tuned(pd.read_csv(REPORTS / TUNING))
    rows = {row["quantizer"]: row for row in records(compared(frame, work))}
    said = ", ".join(f"`{name}` by {percent(rows[PAIR_OF[name]])} %" for name in SHOWN)
    error = rows[PAIR_OF["8bit"]]["slope_error"] / rows[PAIR_OF["8bit"]]["slope"]
    lengths = sorted(frame["steps"] / work.steps)
    return (
        f"training was slower with {said}; the slope by which nats become steps, from runs of "
        f"{lengths[0]:g} to {lengths[-1]:g} times the length, has a standard error of {error:.0%}"
    )
