"""Work of torch in one thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

_lock = threading.Lock()
_here = threading.local()
_inside = 0
_count = 1
_forked = False


@contextmanager
def one_thread() -> Iterator[None]:
    """Within the block, torch uses one thread for the calls of this thread.

    Torch's number of threads belongs to a thread, but new threads begin with the last number set.
    If several threads run such blocks at the same time, each ends with the number set
    before the first.
    """
    global _inside, _count
    if getattr(_here, "inside", False):
        yield
        return
    with _lock:
        if not _inside:
            _count = torch.get_num_threads()
        _inside += 1
    _here.inside = True
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(_count)
        _here.inside = False
        with _lock:
            _inside -= 1


@contextmanager
def safe_after_fork() -> Iterator[None]:
    """`one_thread` in a forked process, where waiting for torch's other threads may never end."""
    with one_thread() if _forked else nullcontext():
        yield


def _begin_child() -> None:
    global _lock, _here, _inside, _forked
    _lock, _here, _inside, _forked = threading.Lock(), threading.local(), 0, True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)
