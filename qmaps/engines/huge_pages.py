"""New tensors in huge pages, where the system grants them.

Large memory is new to a process at each allocation, and the system clears a page when it is
first touched. In pages of 4 KiB this takes longer than to dequantize into them. Pages of
2 MiB are cleared 512 at a time, and the processor remembers where far more memory lies. Under
Linux's default setting (``madvise``) a program asks for them: `empty` does so before the memory is
touched. It stays torch's memory, with the same contents.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from qmaps.engines.addresses import address, in_memory

PAGE = 1 << 21
"""Bytes of a huge page: on x86-64, and on aarch64 with pages of 4 KiB."""
LEAST = 2 * PAGE
"""Smaller tensors may hold no whole huge page."""


def empty(
    shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> Tensor:
    """As `torch.empty`."""
    made = torch.empty(shape, dtype=dtype, device=device)
    if made.device.type == "cpu" and made.nbytes >= LEAST and in_memory(made):
        _advise(made)
    return made


def within(begin: int, nbytes: int) -> tuple[int, int]:
    """The part of memory that consists of complete huge pages.

    Returns:
        Its address and its number of bytes, both multiples of `PAGE`.
    """
    first = -(-begin // PAGE) * PAGE
    return first, max(0, (begin + nbytes) // PAGE * PAGE - first)


def _advise(x: Tensor) -> None:
    advise = _system_call()
    if advise is None:
        return
    first, nbytes = within(address(x), x.nbytes)
    # A system that has no huge pages to give refuses, and nothing is lost.
    if nbytes:
        advise(first, nbytes, mmap.MADV_HUGEPAGE)


@functools.cache
def _system_call() -> Callable[[int, int, int], int] | None:
    """The C library's ``madvise``; None where there is none, or no such advice."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    try:
        function = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    function.restype = ctypes.c_int
    return function
