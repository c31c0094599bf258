"""Bounds of work here: memory, the divider, and the engine's shuffles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.timing import Clock, interleaved, stopwatch
from qmaps import Quantizer
from qmaps.engines import native
from qmaps.engines.native import tensors

NUMBERS = 256
"""Operations of the engine's functions in each round."""

SHUFFLED = 64
"""For how many elements the engine says how many registers it shuffles."""


@dataclass(frozen=True)
class Needs:
    """Operations and bytes per element.

    Attributes:
        written: written bytes, a part of those over the memory bus.
        divisions: of float32.
        roots: square roots of float32.
        shuffles: permutes and packs of whole registers, shared by 64 elements or more.
    """

    written: float = 0.0
    divisions: float = 0.0
    roots: float = 0.0
    shuffles: float = 0.0


@dataclass(frozen=True)
class Limits:
    """Rates of all threads together; None for arithmetic without a measurement.

    Attributes:
        nbytes: bytes per second to and from memory.
        read: bytes per second from memory.
        written: bytes per second to memory.
        divisions: per second of float32 by the vectors of the instruction set in use.
        roots: square roots, likewise.
        shuffles: permutes of registers; None where the instruction set has no use for them.
    """

    nbytes: float
    read: float
    written: float
    divisions: float | None = None
    roots: float | None = None
    shuffles: float | None = None

    def least(self, nbytes: float, needs: Needs) -> tuple[float, str]:
        """Least seconds per element, and the busiest unit.

        Divisions and roots share one unit. It works in parallel with the unit for shuffles and with
        memory in each direction.
        """
        times = {
            "memory": nbytes / self.nbytes,
            "reading": (nbytes - needs.written) / self.read,
            "writing": needs.written / self.written,
        }
        if self.divisions is not None and self.roots is not None:
            times["divider"] = needs.divisions / self.divisions + needs.roots / self.roots
        if self.shuffles is not None:
            times["shuffles"] = needs.shuffles / self.shuffles
        bound = max(times, key=times.__getitem__)
        return times[bound], bound


def decoding(q: Quantizer) -> float:
    """Shuffles per element of the native engine; 0 where it looks values up in another way."""
    return tensors.codebook(q.map).decode_shuffles() / SHUFFLED if native.core else 0.0


def encoding(q: Quantizer) -> float:
    """The same for encoding, with the quantizer's rounding."""
    if native.core is None:
        return 0.0
    return tensors.codebook(q.map).encode_shuffles(stochastic=q.stochastic) / SHUFFLED


def arithmetic(
    rounds: int, *, seconds: float = 0.01, clock: Clock = stopwatch
) -> dict[str, float | None]:
    """Divisions, roots and shuffles per second, the best round of each.

    Args:
        rounds: at least 1.
        seconds: about how long each turn takes.
        clock: times one turn.
    """
    engine: Any = native.core
    if engine is None:
        return {"divisions": None, "roots": None, "shuffles": None}
    threads = torch.get_num_threads()
    works: dict[str, Callable[[int], object]] = {
        "divisions": engine.divisions,
        "roots": engine.roots,
    }
    if engine.shuffles(0):
        works["shuffles"] = engine.shuffles
    # A division, a root and a shuffle take less than 1 ns.
    count = max(1, int(seconds * 1e9) // NUMBERS)
    with ThreadPoolExecutor(threads) as pool:

        def turn(work: Callable[[int], object]) -> Callable[[], object]:
            return lambda: list(pool.map(work, [count] * threads))

        turns = {name: turn(work) for name, work in works.items()}
        turn_seconds, failed = interleaved(turns, rounds, clock=clock)
    for error in failed.values():
        raise error
    rates = {name: threads * count * NUMBERS / min(times) for name, times in turn_seconds.items()}
    return {"shuffles": None} | rates


def shares(row: Mapping[str, Any], limits: Limits) -> dict[str, dict[str, Any]]:
    """Share of its bound reached by each method of a case.

    Args:
        row: row of a case, with ``bytes_per_element`` and ``needs_per_element``: a number and the
            fields of `Needs`, by method.
        limits: limits of this machine.

    Returns:
        By method `share`, the least time as a share of the measured one, and `bound`: ``memory``,
        ``reading``, ``writing``, ``divider`` or ``shuffles``.
    """
    results = {}
    for name, nbytes in row.get("bytes_per_element", {}).items():
        minimum, bound = limits.least(nbytes, Needs(**row["needs_per_element"][name]))
        results[name] = {"share": 1e9 * minimum / row["values"][name]["median"], "bound": bound}
    return results
