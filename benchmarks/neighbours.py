"""Load by other programs during a measurement."""

from __future__ import annotations

import os
import time
from pathlib import Path

STAT = Path("/proc/stat")
BUSY = 0.05
"""Measurements with a larger share of other programs are marked."""
LEAST = 0.5
"""Processor seconds; for less, the system's counters are too coarse."""


class Neighbours:
    """A context with the share of all processors taken by other programs.

    Attributes:
        share: 0 to 1 after the block; None where the system does not report it, or after a short
            block.
    """

    share: float | None = None

    def __enter__(self) -> Neighbours:
        self._start = _spent()
        return self

    def __exit__(self, *_: object) -> None:
        end = _spent()
        if self._start is None or end is None:
            return
        busy, total, ours = (after - before for after, before in zip(end, self._start, strict=True))
        if total >= LEAST:
            self.share = min(1.0, max(0.0, (busy - ours) / total))


def _spent() -> tuple[float, float, float] | None:
    """Seconds of all processors at work, at work or idle, and of this process and its children."""
    try:
        ticks = [int(field) for field in STAT.read_text().splitlines()[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return None
    hertz = os.sysconf("SC_CLK_TCK")
    idle = sum(ticks[3:5])
    children = os.times()
    own_seconds = time.process_time() + children.children_user + children.children_system
    return (sum(ticks) - idle) / hertz, sum(ticks) / hertz, own_seconds
