"""Memory bandwidth, measured in the manner of McCalpin's STREAM with torch's own threads."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from benchmarks.timing import Clock, Work, interleaved, stopwatch

FULL = 1 << 26
"""Elements of each array at full size, 256 MiB: far more than caches hold."""

MOVED = {"copy": (4, 4), "triad": (8, 4), "update": (8, 4), "read": (4, 0), "write": (0, 4)}
"""Bytes read and written per element, by kernel."""


def bandwidth(
    rounds: int,
    scale: float = 1.0,
    *,
    device: torch.device | str = "cpu",
    clock: Clock = stopwatch,
) -> dict[str, float]:
    """Bytes per second by kernel, from its fastest round, counted as in STREAM.

    Each read and each write of a byte by the kernel counts (`MOVED`). Extra reads by the processor,
    before it writes to memory outside its caches, do not count; ``update`` has none.

    Args:
        rounds: at least 1.
        scale: size of the arrays; 1 is `FULL`.
        device: device of the arrays.
        clock: times one call.
    """
    elements = max(1 << 20, int(FULL * scale))
    a, b, c = (torch.full((elements,), value, device=device) for value in (1.0, 2.0, 3.0))
    works: dict[str, Work] = {
        "copy": lambda: a.copy_(b),
        "triad": lambda: torch.add(b, c, alpha=3.0, out=a),
        "update": lambda: a.add_(b, alpha=-1.0),
        "read": lambda: a.sum(),
        # Not of zeros, which some processors write faster than other numbers.
        "write": lambda: a.fill_(1.5),
    }
    seconds, failed = interleaved(works, rounds, clock=clock)
    for error in failed.values():
        raise error
    return {name: sum(MOVED[name]) * elements / min(times) for name, times in seconds.items()}


def one_way(kernels: Mapping[str, float]) -> tuple[float, float]:
    """Bytes per second read and bytes per second written, each by its fastest kernel.

    Args:
        kernels: result of `bandwidth`.
    """
    reading, writing = (
        max(rate * MOVED[name][way] / sum(MOVED[name]) for name, rate in kernels.items())
        for way in (0, 1)
    )
    return reading, writing
