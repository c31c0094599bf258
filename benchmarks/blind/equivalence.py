"""Differences from 32 bits in steps, and tests of their equivalence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from benchmarks.blind.plan import MARGIN
from benchmarks.trials import FULL
from qmaps.storage.files import records

LEVEL = 0.05
"""Rate of false discoveries over a table, and one minus the confidence of an interval."""
WITHIN = ("equivalent", "no worse")
"""Outcomes of quantizers slower by less than the margin."""
MAX_SLOPE_ERROR = 0.2
"""Largest relative standard error of a loss curve's slope for results in steps."""
UNKNOWN = dict.fromkeys(
    ("mean", "low", "high", "p_no_worse", "p_equivalent", "p_worse"), float("nan")
)
"""Result of tests without enough data."""


def slope(curve: pd.DataFrame, steps: int) -> tuple[float, float]:
    """Decrease of the loss per unit of log steps.

    Args:
        curve: `steps`, `seed` and `loss` of runs in 32 bits, of several lengths.
        steps: number of steps; the slope is taken there.

    Returns:
        The slope in nats, above 0 where longer runs end lower, and its standard error: a
        least-squares parabola over log steps, with an intercept for each seed.
    """
    x = np.log(curve["steps"].to_numpy() / steps)
    terms = pd.DataFrame({"x": x, "xx": x**2, "loss": curve["loss"].to_numpy()})
    centred = terms - terms.groupby(curve["seed"].to_numpy()).transform("mean")
    design, loss = centred[["x", "xx"]].to_numpy(), centred["loss"].to_numpy()
    fitted, *_ = np.linalg.lstsq(design, loss, rcond=None)
    freedom = max(1, len(loss) - curve["seed"].nunique() - 2)
    variance = float(((loss - design @ fitted) ** 2).sum()) / freedom
    error = float(np.sqrt(variance * np.linalg.inv(design.T @ design)[0, 0]))
    return -float(fitted[0]), error


def tests(differences: np.ndarray, margin: float) -> dict[str, float]:  # type: ignore[type-arg]
    """Paired t-tests of equivalence to 0, of being no worse, and of being worse or better.

    Args:
        differences: one per seed; above 0 is worse.
        margin: above 0.

    Returns:
        `mean`, `low` and `high` (95 % confidence interval), and the p-values `p_no_worse` (null
        hypothesis: the mean is at or above the margin), `p_equivalent` (two one-sided tests) and
        `p_worse` (null hypothesis: the mean is at or below the margin). Where a run diverged, the
        mean is infinite. For a single difference, only the mean is a number.
    """
    if not np.isfinite(differences).all():
        beyond = {"p_no_worse": 1.0, "p_equivalent": 1.0, "p_worse": 0.0}
        return {"mean": np.inf, "low": np.nan, "high": np.inf, **beyond}
    n, mean = len(differences), float(np.mean(differences))
    if n < 2:
        return UNKNOWN | {"mean": mean}
    error = max(float(np.std(differences, ddof=1) / np.sqrt(n)), 1e-300)
    t = stats.t(n - 1)
    below, above = t.cdf((mean - margin) / error), t.sf((mean + margin) / error)
    half = float(t.ppf(1 - LEVEL / 2)) * error
    return {
        "mean": mean,
        "low": mean - half,
        "high": mean + half,
        "p_no_worse": float(below),
        "p_equivalent": float(max(below, above)),
        "p_worse": float(t.sf((mean - margin) / error)),
    }


def in_steps(frame: pd.DataFrame) -> pd.DataFrame:
    """Difference of each quantizer from 32 bits, by model and rate.

    Args:
        frame: rows of runs, those of other lengths included, with `factor` (of the tuned rate) and
            `length` (1 for the model's own number of steps).

    Returns:
        `judge`, `factor`, `quantizer`, `seeds`, `nats` (mean difference of the final loss),
        `steps`, `low` and `high` (relative increase of the number of steps for the same loss, with
        its 95 % interval), the p-values of `tests`, adjusted over all tests, `outcome`
        (``equivalent``, ``no worse``, ``worse``, ``not shown`` or ``not tested``), and `slope` and
        `slope_error` in nats.
    """
    out = []
    for (model, factor), part in frame.groupby(["judge", "factor"], sort=False):
        full_length = part[part["length"] == 1]
        losses = full_length.set_index(["quantizer", "seed"])["loss"]
        full = losses[FULL]
        steps = int(full_length["steps"].iloc[0])
        curve = part[(part["quantizer"] == FULL) & part["seed"].isin(_curve_seeds(part))]
        fall, error = slope(curve, steps)
        usable = fall > 0 and error <= MAX_SLOPE_ERROR * fall and np.isfinite(full).all()
        for quantizer in full_length["quantizer"].unique():
            if quantizer == FULL:
                continue
            compared = losses[quantizer]
            apart = (compared - full[compared.index]).to_numpy()
            diverged = np.isfinite(full).all() and not np.isfinite(compared).all()
            tested = tests(apart / fall, float(np.log1p(MARGIN))) if usable or diverged else UNKNOWN
            with np.errstate(over="ignore"):  # of trainings that diverged
                mean, low, high = (float(np.expm1(tested[end])) for end in ("mean", "low", "high"))
            out.append(
                {
                    "judge": model,
                    "factor": factor,
                    "quantizer": quantizer,
                    "seeds": len(apart),
                    "nats": float(apart.mean()),
                    "steps": mean,
                    "low": low,
                    "high": high,
                    **{name: value for name, value in tested.items() if name.startswith("p_")},
                    "slope": fall,
                    "slope_error": error,
                }
            )
    table = pd.DataFrame(out)
    for name in ("p_no_worse", "p_equivalent", "p_worse"):
        known = table[name].notna()
        table.loc[known, name] = stats.false_discovery_control(table.loc[known, name])
    return table.assign(outcome=[outcome(row) for row in records(table)])


def of_known_slope(steps: pd.DataFrame) -> pd.DataFrame:
    """The rows of models with a known slope of the loss at every rate."""
    return steps[~steps["judge"].isin(steps.loc[steps["outcome"] == "not tested", "judge"])]


def percent(row: Mapping[str, Any] | None) -> str:
    """Mean and interval of a row of `in_steps`, in per cent; without a row, "not known".

    From a hundred times as many steps on, the training counts as diverged.
    """
    if row is None or np.isnan(row["steps"]):
        return "not known"
    if row["steps"] > 100 or not np.isfinite([row["low"], row["high"]]).all():
        return "diverged"
    return "{:+.1f} ({:+.1f} to {:+.1f})".format(*(100 * row[n] for n in ("steps", "low", "high")))


def outcome(row: dict[str, float]) -> str:
    """The outcome of a row of `in_steps`, from its adjusted p-values."""
    if np.isnan(row["p_equivalent"]):
        return "not tested"
    if row["p_equivalent"] < LEVEL:
        return "equivalent"
    if row["p_no_worse"] < LEVEL:
        return "no worse"
    return "worse" if row["p_worse"] < LEVEL else "not shown"


def _curve_seeds(frame: pd.DataFrame) -> set[int]:
    """Seeds with runs of other lengths."""
    return set(frame.loc[frame["length"] != 1, "seed"])
