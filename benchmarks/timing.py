"""Timing that a noisy machine cannot bias towards one contender."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

Work = Callable[[], object]


def interleaved(contenders: Mapping[str, Work], rounds: int) -> dict[str, list[float]]:
    """Seconds of each contender in every round: A B C, A B C, ...

    So whatever slows the machine for a while slows all of them. A first round warms up and is not
    counted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, work in contenders.items():
            start = time.perf_counter()
            work()
            if number:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def summary(seconds: list[float], elements: int) -> dict[str, float]:
    """Median and quartiles in nanoseconds per element."""
    scaled = [1e9 * second / elements for second in seconds]
    if len(scaled) < 2:
        return dict.fromkeys(("median", "q1", "q3"), scaled[0])
    q1, median, q3 = statistics.quantiles(scaled, n=4, method="inclusive")
    return {"median": median, "q1": q1, "q3": q3}
