"""Validation loss predicted from step costs, and the smallest choice within a limit of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from qmaps.analyze.recommend.verdict import cost_of, dangerous

NATS = 0.14
"""Nats of validation loss per step cost on one fine-tuned model: a least-squares line through zero
over 25 pairs, which ``python -m benchmarks.prediction.scale`` fits. On another model the slope may
differ; see docs/recommend.md."""
SCALE = "on the scale of one small fine-tuned model; yours may differ"

T = TypeVar("T")


def predicted(measures: Mapping[str, Any]) -> float:
    """The predicted loss in nats minus that of 32 bits.

    Args:
        measures: a row of `qmaps.replay.summarize`.

    Returns:
        Step cost times `NATS`; NaN with zero points or very large updates.
    """
    return math.nan if dangerous(measures) else NATS * cost_of(measures)


def smallest(at: Callable[[int], T], fits: Callable[[T], bool], low: int, high: int) -> T | None:
    """Bisect for the smallest budget whose choice fits.

    Args:
        at: the choice within a budget of bytes.
        fits: whether a choice is good enough.
        low: the smallest budget.
        high: the largest budget.

    Returns:
        The choice; None if that of the largest budget does not fit. A choice within one byte less
        does not fit.
    """
    if fits(best := at(low)):
        return best
    if not fits(best := at(high)):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if fits(smaller := at(middle)):
            best, high = smaller, middle
        else:
            low = middle
    return best
