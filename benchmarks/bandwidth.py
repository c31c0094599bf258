"""Memory bandwidth, measured in the manner of McCalpin's STREAM with torch's own threads."""

from __future__ import annotations

import torch

from benchmarks.timing import Clock, interleaved, stopwatch

FULL = 1 << 26
"""Elements of each array at full size, 256 MiB: far more than caches hold."""


def bandwidth(
    rounds: int,
    scale: float = 1.0,
    *,
    device: torch.device | str = "cpu",
    clock: Clock = stopwatch,
) -> dict[str, float]:
    """Bytes per second, by kernel; the best round of each, as STREAM counts.

    A byte counts each time the kernel reads or writes it. What a processor reads besides,
    before it writes to memory that it has not read, does not count; ``update`` has none of it.

    Args:
        rounds: at least 1.
        scale: size of the arrays; 1 is `FULL`.
        device: whose memory.
        clock: times one turn.
    """
    elements = max(1 << 20, int(FULL * scale))
    a, b, c = (torch.full((elements,), value, device=device) for value in (1.0, 2.0, 3.0))
    kernels = {
        "copy": (8, lambda: a.copy_(b)),
        "triad": (12, lambda: torch.add(b, c, alpha=3.0, out=a)),
        "update": (12, lambda: a.add_(b, alpha=-1.0)),
        "read": (4, lambda: a.sum()),
    }
    works = {name: work for name, (_, work) in kernels.items()}
    seconds, failed = interleaved(works, rounds, clock=clock)
    for error in failed.values():
        raise error
    return {name: kernels[name][0] * elements / min(each) for name, each in seconds.items()}
