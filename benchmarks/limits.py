"""What no work can be faster than here: memory, and the units that divide and take roots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.timing import Clock, interleaved, stopwatch
from qmaps.engines import native

NUMBERS = 256
"""How many numbers the engine's functions divide, or take roots of, in each of their rounds."""


@dataclass(frozen=True)
class Limits:
    """Rates of all threads together.

    Attributes:
        nbytes: bytes per second to and from memory.
        divisions: per second of float32 by the vectors of the instruction set in use; None without
            the native engine.
        roots: square roots, likewise.
    """

    nbytes: float
    divisions: float | None = None
    roots: float | None = None

    def least(self, nbytes: float, divisions: float, roots: float) -> tuple[float, str]:
        """Seconds of what needs so much, if all else cost nothing, and what they are spent in.

        Divisions and roots share one unit; memory works at the same time.
        """
        memory = nbytes / self.nbytes
        if self.divisions is None or self.roots is None:
            return memory, "memory"
        dividing = divisions / self.divisions + roots / self.roots
        return max((memory, "memory"), (dividing, "divider"))


def arithmetic(
    rounds: int, *, seconds: float = 0.01, clock: Clock = stopwatch
) -> dict[str, float | None]:
    """Divisions and roots per second, the best round of each.

    Args:
        rounds: at least 1.
        seconds: about how long each turn takes.
        clock: times one turn.
    """
    engine: Any = native.core
    if engine is None:
        return {"divisions": None, "roots": None}
    threads = torch.get_num_threads()
    works: dict[str, Callable[[int], None]] = {
        "divisions": engine.divisions,
        "roots": engine.roots,
    }
    # A division and a root take less than 1 ns.
    count = max(1, int(seconds * 1e9) // NUMBERS)
    with ThreadPoolExecutor(threads) as pool:

        def turn(work: Callable[[int], None]) -> Callable[[], object]:
            return lambda: list(pool.map(work, [count] * threads))

        turns = {name: turn(work) for name, work in works.items()}
        found, failed = interleaved(turns, rounds, clock=clock)
    for error in failed.values():
        raise error
    return {name: threads * count * NUMBERS / min(each) for name, each in found.items()}


def shares(row: Mapping[str, Any], limits: Limits) -> dict[str, dict[str, Any]]:
    """How close each contender of a case comes to what bounds it.

    Args:
        row: a case's, with ``bytes_per_element`` and ``divider_per_element``.
        limits: of this machine.

    Returns:
        By contender `share`, the least time as a share of the measured one, and `bound`: ``memory``
        or ``divider``.
    """
    found = {}
    for name, nbytes in row.get("bytes_per_element", {}).items():
        divisions, roots = row["divider_per_element"].get(name, (0.0, 0.0))
        least, bound = limits.least(nbytes, divisions, roots)
        found[name] = {"share": 1e9 * least / row["values"][name]["median"], "bound": bound}
    return found
