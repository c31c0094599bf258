"""Seconds of a device, by events in its stream."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from benchmarks.timing import Work

SHORT = 20e-3
"""Seconds; shorter calls are repeated, to hide the host's part behind the device's."""
MOST_CALLS = 100


class DeviceClock:
    """Seconds of one call on the current CUDA device.

    A long call is timed by itself. Short ones are timed several in a row: their time is the larger
    of the device's and the host's, as in a training loop.

    Attributes:
        patience: timeout of a call in seconds.
    """

    def __init__(self, patience: float = math.inf) -> None:
        self.patience = patience

    def __call__(self, work: Work) -> float:
        """Do the work, at least once."""
        with at_most(self.patience):
            first = _seconds(work, 1)
            if first >= SHORT:
                return first
            return _seconds(work, min(MOST_CALLS, math.ceil(SHORT / max(first, 1e-6))))


def _seconds(work: Work, calls: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / calls


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in this thread, the main one, after a number of seconds.

    The exception is raised between two steps of Python. It cannot interrupt an endless wait for the
    device; `benchmarks.gpu.worker` ends such a process from outside.
    """
    if math.isinf(seconds) or threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(*_: object) -> None:
        raise TimeoutError(f"took more than {seconds:.3g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
