"""Numbers in words of a finding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

LEVEL, POWER = 0.05, 0.8
"""Significance level and power of t-tests."""
MARGIN = 0.005
"""Largest difference of equal losses, in nats."""


@dataclass(frozen=True)
class Interval:
    """The mean of a few values, such as the differences of seeds, with its uncertainty.

    Attributes:
        mean: their mean.
        low, high: the ends of its 95 % interval, by a t-test.
        error: its standard error.
        std: their standard deviation.
        detectable: the mean that as many such values tell from 0 in 80 % of all experiments.
    """

    mean: float
    low: float
    high: float
    error: float
    std: float
    detectable: float


def interval(values: Sequence[float] | NDArray[np.float64]) -> Interval:
    """Interval of at least two values; for one, the ends are infinite.

    If a value is not finite, no field is.
    """
    array = np.asarray(values, dtype=float)
    if not np.isfinite(array).all():
        return Interval(math.inf, math.inf, math.inf, math.nan, math.nan, math.inf)
    mean, n = float(array.mean()), array.size
    if n < 2:
        return Interval(mean, -math.inf, math.inf, math.nan, math.nan, math.inf)
    std = float(array.std(ddof=1))
    error, t = std / n**0.5, stats.t(n - 1)
    half = float(t.ppf(1 - LEVEL / 2)) * error
    seen = half + float(t.ppf(POWER)) * error
    return Interval(mean, mean - half, mean + half, error, std, seen)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard error; the standard error of one value is NaN."""
    array = np.asarray(values, dtype=float)
    spread = float(array.std(ddof=1) / array.size**0.5) if array.size > 1 else float("nan")
    return float(array.mean()), spread


def ratio_interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Geometric mean of paired ratios and the ends of its 95 % interval, by a t-test.

    Args:
        ours: positive numbers, one of each seed.
        theirs: divisors, of the same seeds in the same order.
    """
    logs = interval(np.log(np.asarray(ours, dtype=float) / np.asarray(theirs, dtype=float)))
    return math.exp(logs.mean), math.exp(logs.low), math.exp(logs.high)


def smaller(ours: Sequence[float], theirs: Sequence[float]) -> bool | tuple[bool, ...]:
    """True if ours are smaller, seed by seed; empty if the seeds cannot tell."""
    _, low, high = ratio_interval(ours, theirs)
    return high < 1 if high < 1 or low > 1 else ()


def percent(value: float) -> str:
    """A fraction as percent with three significant digits, plain up to a million."""
    return f"{100 * value:,.3g} %" if value < 10 else f"{100 * value:,.0f} %"


def number(value: float) -> str:
    """Three significant digits, plain where readable."""
    if 1000 <= abs(value) < 1e7:
        return f"{value:,.0f}"
    return f"{value:.3g}" if 1e-4 <= abs(value) < 1000 or value == 0 else f"{value:.2e}"


def scientific(value: float) -> str:
    """A power of ten as papers write it.

    >>> scientific(1e-8)
    '1e-8'
    """
    return f"{value:.0e}".replace("e-0", "e-")
