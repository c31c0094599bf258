"""Timing in interleaved rounds, unbiased by a noisy machine."""

from __future__ import annotations

import math
import statistics
import time
import traceback
from collections.abc import Callable, Mapping, Sequence

Work = Callable[[], object]
Clock = Callable[[Work], float]
"""Does a work and gives its seconds."""
WARM_UPS = 2
"""Rounds before the counted ones: the first makes states, the second uses them."""
LEAST = 2
"""Counted rounds of a work, however slow it is."""


def stopwatch(work: Work) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def interleaved(
    works: Mapping[str, Work],
    rounds: int,
    *,
    refresh: Callable[[int], None] | None = None,
    budget: float = math.inf,
    clock: Clock = stopwatch,
    warm_ups: int = WARM_UPS,
    seconds_in_all: float = math.inf,
) -> tuple[dict[str, list[float]], dict[str, Exception]]:
    """Seconds of each work in every round: A B C, A B C, ...

    A slow phase of the machine slows all of them.

    Args:
        works: by name.
        rounds: counted rounds, at least 1.
        refresh: called before each round with its number, warm-ups included; not timed.
        budget: seconds for each work; a slower one stops after `LEAST` counted rounds. Its first
            call, with the compilation of peers, is not included.
        clock: runs and times one call.
        warm_ups: rounds before the counted ones.
        seconds_in_all: seconds for all works; after them no round begins, once all works have
            `LEAST` counted ones.

    Returns:
        Seconds by name, from the first counted round on, and errors by name; a failed work takes no
        further turns.
    """
    seconds: dict[str, list[float]] = {name: [] for name in works}
    spent = dict.fromkeys(works, 0.0)
    failed: dict[str, Exception] = {}
    begin = time.perf_counter()
    for number in range(rounds + warm_ups):
        late = time.perf_counter() - begin > seconds_in_all
        turns = [
            name
            for name in works
            if name not in failed
            and (len(seconds[name]) < LEAST or (spent[name] < budget and not late))
        ]
        if not turns:
            break
        if refresh is not None:
            refresh(number)
        for name in turns:
            start = time.perf_counter()
            try:
                elapsed = clock(works[name])
            except Exception as error:
                # Its frames would keep the memory that it ran out of.
                traceback.clear_frames(error.__traceback__)
                failed[name] = error
                continue
            spent[name] += time.perf_counter() - start if number else 0.0
            if number >= warm_ups:
                seconds[name].append(elapsed)
    return {name: times for name, times in seconds.items() if name not in failed}, failed


def quartiles(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    if len(values) < 2:
        return dict.fromkeys(("median", "q1", "q3"), values[0])
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "q1": q1, "q3": q3}


def ratio(peer: Sequence[float], ours: Sequence[float]) -> dict[str, float]:
    """The ratio of the medians, and the quartiles of the ratios within each round.

    Only common rounds count: the first ones, as slow methods stop early.
    """
    common = min(len(peer), len(ours))
    spread = quartiles([p / o for p, o in zip(peer[:common], ours[:common], strict=True)])
    medians = statistics.median(peer[:common]) / statistics.median(ours[:common])
    return {"ratio": medians, "q1": spread["q1"], "q3": spread["q3"]}
