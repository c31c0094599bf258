"""The best rate of a baseline, and the rows of a group at it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks.losses.methods import MethodTrial
from benchmarks.losses.studies import SEEDS, Group, Row
from benchmarks.trials import FULL, run_all
from qmaps.errors import QmapsError

FACTORS = (0.5, 1.0, 2.0)
"""First rates of a sweep, in units of the workload's."""
LIMIT = 2.0**8


def best(group: Group, runs: Path, workers: int) -> tuple[float, pd.DataFrame]:
    """The multiple of the workload's rate with the lowest mean loss, and the runs of the sweep.

    Rates are tried until the best one has a neighbour at half and one at twice its value.

    Raises:
        QmapsError: there is none up to `LIMIT` times the workload's rate, or its inverse.
    """
    tried = list(FACTORS)
    while True:
        plan = [
            group.baseline(factor, seed) for factor in tried for seed in range(group.rate_seeds)
        ]
        frame = framed(group, plan, runs, workers)
        losses = frame["loss"].where(frame["loss"].map(math.isfinite), math.inf)
        means = losses.groupby([trial.workload.lr / group.workload.lr for trial in plan]).mean()
        rate = float(means.idxmin())
        more = [factor for factor in (rate / 2, rate * 2) if factor not in tried]
        if not more:
            return rate, frame
        if not 1 / LIMIT <= rate <= LIMIT:
            raise QmapsError(f"{group.judge} {group.family}: no best rate up to {LIMIT:g} times")
        tried += more


def run(group: Group, runs: Path, workers: int, seeds: int = SEEDS) -> pd.DataFrame:
    """All runs of a group: the sweep, with `best` False, and the rows, with `best` True.

    A run is `unstable` if its loss ends above that of the untrained model, or is not finite.
    """
    factor, swept = best(group, runs, workers)
    rows = list(dict.fromkeys([Row(FULL), *group.rows]))
    plan = [group.trial(row, factor, seed) for row in rows for seed in range(seeds)]
    tuned = framed(group, plan, runs, workers)
    frame = pd.concat([swept.assign(best=False), tuned.assign(best=True)], ignore_index=True)
    start = group.workload.validate(group.workload.model(0))["loss"]
    return frame.assign(unstable=[not loss <= start for loss in frame["loss"]])


def framed(group: Group, plan: Sequence[MethodTrial], runs: Path, workers: int) -> pd.DataFrame:
    """Run them; one row for each, with its group, method and hyperparameters."""
    frame = run_all(plan, runs, workers=workers)
    works = [trial.workload for trial in plan]
    return frame.assign(
        group=f"{group.judge}, {group.family}" + (f", N = {group.n}" if group.n > 1 else ""),
        optimizer=[trial.family for trial in plan],
        N=group.n,
        beta1=[work.betas[0] for work in works],
        beta2=[work.betas[1] for work in works],
        eps=[work.eps for work in works],
    )
