"""Losses of two methods compared seed by seed."""

from __future__ import annotations

import pandas as pd
from scipy import stats

LEVEL, POWER = 0.05, 0.8
"""Significance level and power of the t-test."""


def paired(losses: pd.Series, baseline: pd.Series) -> dict[str, float]:
    """Difference of `losses` from `baseline`, with the same index; NaN of either are left out.

    Returns:
        `seeds` (how many count), `difference` (mean), and `low` and `high`, the ends of its 95 %
        confidence interval by a t-test; these are NaN for less than two seeds.
    """
    apart = (losses - baseline).dropna()
    n, mean = len(apart), float(apart.mean())
    half = float(stats.t.ppf(0.975, n - 1) * apart.sem())
    return {"seeds": n, "difference": mean, "low": mean - half, "high": mean + half}


def detectable(std: float, seeds: int) -> float:
    """The mean difference detected by a paired t-test with the probability `POWER`.

    Args:
        std: standard deviation of the differences over seeds.
        seeds: number of seeds; the result is NaN for one.
    """
    t = stats.t(seeds - 1)
    return float((t.ppf(1 - LEVEL / 2) + t.ppf(POWER)) * std / seeds**0.5)
