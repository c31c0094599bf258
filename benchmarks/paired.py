"""Losses of two contenders compared seed by seed."""

from __future__ import annotations

import pandas as pd
from scipy import stats


def paired(one: pd.Series, other: pd.Series) -> dict[str, float]:
    """What `one` differs by from `other`, with the same index; NaN of either are left out.

    Returns:
        `seeds` (how many count), `difference` (mean), and `low` and `high`, the ends of its 95 %
        confidence interval by a t-test; these are NaN for less than two seeds.
    """
    apart = (one - other).dropna()
    n, mean = len(apart), float(apart.mean())
    half = float(stats.t.ppf(0.975, n - 1) * apart.sem())
    return {"seeds": n, "difference": mean, "low": mean - half, "high": mean + half}
