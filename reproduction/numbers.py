"""Numbers in words of a finding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from qmaps.lab.report.claims import number, percent

__all__ = ["mean_and_error", "number", "percent", "ratio_interval", "smaller"]


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard error; the standard error of one value is NaN."""
    array = np.asarray(values, dtype=float)
    spread = float(array.std(ddof=1) / array.size**0.5) if array.size > 1 else float("nan")
    return float(array.mean()), spread


def ratio_interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Geometric mean of paired ratios and the ends of its 95 % interval, by a t-test.

    Args:
        ours: positive numbers, one of each seed.
        theirs: those that they are divided by, of the same seeds in the same order.
    """
    logs = np.log(np.asarray(ours, dtype=float) / np.asarray(theirs, dtype=float))
    mean = float(logs.mean())
    if logs.size < 2:
        return float(np.exp(mean)), 0.0, float("inf")
    half = float(stats.t.ppf(0.975, logs.size - 1) * logs.std(ddof=1) / logs.size**0.5)
    return float(np.exp(mean)), float(np.exp(mean - half)), float(np.exp(mean + half))


def smaller(ours: Sequence[float], theirs: Sequence[float]) -> bool | tuple[bool, ...]:
    """Whether ours are smaller, seed by seed; empty if the seeds cannot tell."""
    _, low, high = ratio_interval(ours, theirs)
    return high < 1 if high < 1 or low > 1 else ()
