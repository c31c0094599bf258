"""Options of 32-bit AdamW for each judge: learning rate, then beta1, then weight decay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.trials import FULL, Trial, run_all
from qmaps.lab.workloads import Workload

SEEDS = (100, 101)
"""None of the trials has one of these."""
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
BETA1 = (0.8, 0.9, 0.95)
FURTHER_BETA1 = {0.8: 0.6, 0.6: 0.3, 0.3: 0.0, 0.95: 0.98}
"""The next value to try where the best one so far is the first or last."""
WEIGHT_DECAY = (0.0, 0.01, 0.1)
DEFAULTS: dict[str, float | None] = {"lr": None, "beta1": 0.9, "weight_decay": 0.01}
OPTIONS = tuple(DEFAULTS)


def values_of(work: Workload) -> dict[str, float]:
    """The tuned options of a workload, by the names of `OPTIONS`."""
    return {"lr": work.lr, "beta1": work.betas[0], "weight_decay": work.weight_decay}


def rows(trials: Sequence[Trial], folder: Path, workers: int) -> pd.DataFrame:
    """Rows of `run_all` with the options of `OPTIONS`, and `key`."""
    frame = run_all(trials, folder, workers=workers)
    options = pd.DataFrame([values_of(trial.workload) for trial in trials])
    return frame.assign(**options.to_dict("list"), key=[trial.key for trial in trials])


def tune(judge: str, work: Workload, folder: Path, workers: int = 0) -> pd.DataFrame:
    """Train a judge in 32 bits with each option in turn, the others as chosen so far.

    The range of rates, and that of beta1, grows until the best value lies inside it.

    Args:
        judge: its name, for the table.
        work: it, with the options to begin with.
        folder: where rows are kept.
        workers: as in `run_all`.

    Returns:
        A row per training: those of `run_all`, `lr`, `beta1`, `weight_decay` and `key`.
    """
    frame = pd.DataFrame()
    rates = [work.lr * factor for factor in FACTORS]
    for option, values in zip(OPTIONS, (rates, BETA1, WEIGHT_DECAY), strict=True):
        tried = list(values)
        while True:
            works = [_with(work, option, value) for value in tried]
            trials = [Trial(judge, work, FULL, seed) for work in works for seed in SEEDS]
            frame = pd.concat([frame, rows(trials, folder, workers)], ignore_index=True)
            frame = frame.drop_duplicates("key", ignore_index=True)
            best, chosen = choose(_losses(frame, values_of(work), option), DEFAULTS[option])
            value = _wider(option, best, tried)
            if value is None:
                break
            tried.append(value)
        work = _with(work, option, chosen)
    return frame


def choose(losses: pd.DataFrame, default: float | None) -> tuple[float, float]:
    """The value of lowest mean loss, and the one to take.

    That is the value closest to the default of those whose mean is within one standard error of the
    lowest, seed by seed: a baseline is not moved by noise to where nobody trains.

    Args:
        losses: one column per value, one row per seed.
        default: the field's usual value; None takes the lowest mean.
    """
    losses = losses.fillna(np.inf)  # of trainings that diverged
    best = float(losses.mean().idxmin())
    if default is None:
        return best, best
    above = losses.sub(losses[best], axis=0)
    near = [value for value in losses if above[value].mean() <= above[value].sem()]
    return best, float(min([best, *near], key=lambda value: abs(value - default)))


def options(frame: pd.DataFrame) -> dict[str, dict[str, float]]:
    """The options that were chosen, by judge.

    Args:
        frame: rows of `tune`.
    """
    out = {}
    for judge, own in frame.groupby("judge", sort=False):
        picked = {**own.iloc[0][list(OPTIONS)], "lr": None}  # the first rows are of other rates
        for option in OPTIONS:
            picked[option] = choose(_losses(own, picked, option), DEFAULTS[option])[1]
        out[judge] = picked
    return out


def _losses(frame: pd.DataFrame, values: Mapping[str, float | None], option: str) -> pd.DataFrame:
    """Losses by seed and value of an option, the others as in `values`; None is any value."""
    others = [name for name in OPTIONS if name != option and values[name] is not None]
    same = (frame[others] == [values[name] for name in others]).all(axis=1)
    return frame[same].pivot_table("loss", "seed", option)


def _wider(option: str, best: float, tried: Sequence[float]) -> float | None:
    """The next value to try where the best one is the first or last so far; None if none is."""
    if min(tried) < best < max(tried):
        return None
    if option == "lr":
        return best * 2 if best == max(tried) else best / 2
    if option == "beta1":
        return FURTHER_BETA1.get(best)
    return best * 10 if best == max(tried) else None


def _with(work: Workload, option: str, value: float) -> Workload:
    if option == "beta1":
        return replace(work, betas=(value, work.betas[1]))
    return replace(work, **{option: value})  # type: ignore[arg-type]
