"""Counts of trained pairs by outcome, for `qmaps.recommend` and its pages."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pandas as pd

from benchmarks.blind.equivalence import MAX_SLOPE_ERROR, of_known_slope
from benchmarks.blind.models import SEEN
from benchmarks.blind.plan import MARGIN, PAIRS, SAFE_SHARE
from benchmarks.tasks import LENGTHS, REPORTS, RUNS, slower
from benchmarks.trials import FULL
from qmaps.analyze.recommend.verdict import HARMLESS, LEVELS, LONG_ENDED, cost_of, dangerous, level
from qmaps.storage.files import records
from reproduction.tasks import TASKS

PARTS = {"small": "docstring-lm", "scratch": "lm-tiny", "minilm": "minilm", "lm": "stdlib-lm"}
"""Models of the parts of reports/prediction at the tuned rate."""
MIDDLE = 0.9
"""Share of the pairs within the stated range."""


def points(trials: pd.DataFrame, measures: pd.DataFrame, slopes: pd.DataFrame) -> pd.DataFrame:
    """Pairs at the tuned rates.

    Args:
        trials: rows of reports/prediction/trials.csv.
        measures: rows of reports/prediction/measures.csv.
        slopes: `judge`, `slope` and `slope_error` of `benchmarks.tasks.slower`.

    Returns:
        `judge`, `quantizer`, `verdict`, `cost` (the step cost; NaN with zero points or very large
        updates), and `slower` (the mean difference of the final loss from 32 bits, in units of log
        steps; infinite where a run diverged). Models without a known slope are left out.
    """
    usable = slopes[slopes["slope_error"] <= MAX_SLOPE_ERROR * slopes["slope"]]
    falls = dict(zip(usable["judge"], usable["slope"], strict=True))
    tables = []
    for part, model in PARTS.items():
        if model not in falls:
            continue
        runs = trials[(trials["part"] == part) & (trials["lr"] == TASKS[model].lr)]
        losses = runs.pivot_table("loss", "quantizer", "seed", sort=False, dropna=False)
        apart = losses.drop(FULL).sub(losses.loc[FULL]).mean(axis=1, skipna=False).fillna(np.inf)
        replays = measures[measures["judge"] == model].set_index("quantizer").loc[apart.index]
        replays = replays.filter(like="replay_").rename(columns=lambda name: name[7:])
        told = replays.reset_index().assign(judge=model, slower=(apart / falls[model]).to_numpy())
        tables.append(_with_verdicts(told))
    return pd.concat(tables, ignore_index=True)


def blind(steps: pd.DataFrame, told: pd.DataFrame) -> pd.DataFrame:
    """Rows like those of `points` for the blind test, of models with a known slope.

    Args:
        steps: rows of reports/blind/steps.csv.
        told: rows of reports/blind/verdicts.csv.
    """
    told = told[told["mode"] == "gradients"].assign(cost=1.0)  # every pair has updates
    rows = of_known_slope(steps[(steps["factor"] == 1) & steps["quantizer"].isin(PAIRS)])
    pairs = told.merge(rows[["judge", "quantizer", "steps"]], on=["judge", "quantizer"])
    return _with_verdicts(pairs.assign(slower=np.log1p(pairs["steps"])))


def _with_verdicts(told: pd.DataFrame) -> pd.DataFrame:
    rows = records(told)
    costs = [np.nan if dangerous(row) else cost_of(row) for row in rows]
    table = told[["judge", "quantizer", "slower"]]
    return table.assign(verdict=[level(row) for row in rows], cost=costs)


@lru_cache(1)
def committed() -> pd.DataFrame:
    """`points` and `blind` of the committed reports."""
    folder = REPORTS / "prediction"
    seen = points(
        pd.read_csv(folder / "trials.csv"),
        pd.read_csv(folder / "measures.csv"),
        slower(pd.read_csv(RUNS), pd.read_csv(LENGTHS)).drop_duplicates("judge"),
    )
    tables = (pd.read_csv(REPORTS / "blind" / name) for name in ("steps.csv", "verdicts.csv"))
    return pd.concat([seen, blind(*tables)], ignore_index=True)


def bounds(pairs: pd.DataFrame) -> pd.DataFrame:
    """For each model, the bound of "clean" from the other models, and the results up to it.

    Returns:
        `judge`, `bound` (the largest step cost with at least `SAFE_SHARE` of the pairs of the other
        models up to it at most the margin slower), and the model's own `pairs` and `kept_up` up to
        the bound.
    """
    harmless = pairs[pairs["verdict"].isin(HARMLESS)].sort_values("cost")
    ended_well = harmless["slower"] <= np.log1p(MARGIN)
    rows = []
    for model in pairs["judge"].unique():
        held_out = harmless["judge"] == model
        costs = harmless.loc[~held_out, "cost"]
        shares = ended_well[~held_out].expanding().mean()
        bound = costs[shares >= SAFE_SHARE].max()
        below = ended_well[held_out & (harmless["cost"] <= bound)]
        rows.append((model, bound, len(below), int(below.sum())))
    return pd.DataFrame(rows, columns=["judge", "bound", "pairs", "kept_up"])


def ended(pairs: pd.DataFrame) -> dict[str, tuple[int, int]]:
    """By verdict, how many pairs were at most the margin slower, and how many there are."""
    kept_up = (pairs["slower"] <= np.log1p(MARGIN)).groupby(pairs["verdict"])
    counts = zip(kept_up.sum().items(), kept_up.count(), strict=True)
    return {str(name): (int(well), int(count)) for (name, well), count in counts}


def simulated() -> tuple[dict[str, dict[str, int]], tuple[float, float]]:
    """Verdicts and costs from simulated gradients beside those from recorded ones.

    Returns:
        For each verdict from simulated gradients the counts of those from recorded ones, and the
        ends of the central `MIDDLE` of the ratios of step costs. Dangerous pairs have no ratio.
    """
    rows = pd.read_csv(REPORTS / "simulated.csv").replace("safe", LEVELS[0])  # its former word
    counts = pd.crosstab(rows["verdict_simulated"], rows["verdict"])
    table = counts.reindex(index=LEVELS, columns=LEVELS, fill_value=0)
    by_level = {row: dict(zip(LEVELS, map(int, table.loc[row]), strict=True)) for row in LEVELS[1:]}
    simulation = rows.filter(like="_simulated").rename(
        columns=lambda name: name[: -len("_simulated")]
    )
    calm = [
        not dangerous(recorded) and not dangerous(simulated_row)
        for recorded, simulated_row in zip(records(rows), records(simulation), strict=True)
    ]
    ratios = (simulation["step_cost"] / rows["step_cost"])[calm]
    low, high = ratios.quantile([(1 - MIDDLE) / 2, (1 + MIDDLE) / 2])
    return by_level, (float(low), float(high))


def trained_pairs() -> str:
    """Results of the pairs of each harmless verdict."""
    pairs = committed()
    counts = ended(pairs)
    (clean, all_clean), (well, unproven) = (counts[name] for name in HARMLESS)
    eight = pairs.loc[pairs["verdict"] == "clean", "quantizer"].str.contains("@8s.*@8u").sum()
    return (
        f"{clean} of {all_clean} clean pairs, of which {eight} have 8 bits in both moments, and "
        f"{well} of {unproven} unproven ones"
    )


def long_trained_pairs() -> str:
    """How pairs of each verdict ended over 8,000 steps."""
    return ", ".join(f"{well} of {pairs} {name}" for name, (well, pairs) in LONG_ENDED.items())


def blind_safe() -> str:
    """Results of the pairs called safe in the blind test."""
    steps = pd.read_csv(REPORTS / "blind" / "steps.csv")
    safe = steps[(steps["factor"] == 1) & (steps["verdict_gradients"] == "safe")]
    safe = safe[~safe["judge"].isin(SEEN) & safe["quantizer"].isin(PAIRS)].dropna(subset="steps")
    return f"{(safe['steps'] <= MARGIN).sum()} of {len(safe)}"


def left_out() -> str:
    """The bound of clean without one of the models, and the results of its pairs."""
    (row,) = records(bounds(committed()).query("judge == 'microbiome'"))
    return f"{row['bound']:.2g}, and {row['pairs'] - row['kept_up']} of its {row['pairs']} pairs"
