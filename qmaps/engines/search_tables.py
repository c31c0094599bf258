"""Tables with which kernels find the codes of numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from qmaps.maps.base import Map, cached, limits, table

T = TypeVar("T")

MANTISSA_BITS = 23
CELL_BITS = 10
"""At most, of `cells`."""
MAX_GUESSES = 4096


@dataclass(frozen=True)
class Guesses:
    """Number of limits below all floats of a bucket; see ``Search`` in ``src/layout.cuh``.

    Attributes:
        shift: the floats of a bucket have equal bits, without the sign, from this bit up.
        first: those bits of the first bucket; it also holds all smaller magnitudes.
        buckets: the number of buckets of each sign; the last one holds all larger magnitudes.
        counts: uint8: a count for each positive bucket, then one for each negative bucket if there
            are negative limits; else negative numbers take the first bucket.
        steps: remaining halvings of the search: at most ``2**steps - 1`` limits of a bucket are
            not counted.
    """

    shift: int
    first: int
    buckets: int
    counts: np.ndarray
    steps: int


def guesses(limits: np.ndarray) -> Guesses:
    """The table of at most `MAX_GUESSES` entries with the fewest remaining halvings.

    Of several such tables, it is the smallest.

    Args:
        limits: ascending float32 of shape (count,), with at most 255 elements.
    """
    magnitudes = np.abs(limits[limits != 0])
    low, high = (magnitudes.min(), magnitudes.max()) if magnitudes.size else (1.0, 1.0)
    ends = np.array([low, high], dtype=np.float32).view(np.uint32).astype(np.int64)
    sides = 2 if (limits < 0).any() else 1
    best: Guesses | None = None
    for bits in range(MANTISSA_BITS + 1):
        shift = MANTISSA_BITS - bits
        # One bucket for all below the smallest limit.
        first = max(int(ends[0] >> shift) - 1, 0)
        buckets = int(ends[1] >> shift) - first + 1
        if sides * buckets > MAX_GUESSES:
            break
        table = _counted(limits, shift, first, buckets)
        if best is None or table.steps < best.steps:
            best = table
        if best.steps <= 1:
            break
    if best is None:  # limits from the smallest float to the largest: one bucket for all of them
        best = _counted(limits, 31, 0, 1)
    return best


def _counted(limits: np.ndarray, shift: int, first: int, buckets: int) -> Guesses:
    infinity = np.float32(np.inf).view(np.uint32).astype(np.int64)
    lowest = (np.arange(buckets, dtype=np.int64) + first) << shift
    lowest[0] = 0
    highest = np.append(lowest[1:] - 1, infinity)
    near = np.minimum(lowest, infinity).astype(np.uint32).view(np.float32)
    far = np.minimum(highest, infinity).astype(np.uint32).view(np.float32)
    # Limits below the smallest float of a bucket, and below its largest.
    below, upto = np.searchsorted(limits, near), np.searchsorted(limits, far)
    if (limits < 0).any():
        below = np.append(below, np.searchsorted(limits, -far))
        upto = np.append(upto, np.searchsorted(limits, -near))
    spread = int((upto - below).max())
    return Guesses(shift, first, buckets, below.astype(np.uint8), spread.bit_length())


def cells(limits: np.ndarray) -> np.ndarray | None:
    """Number of limits below all numbers of each cell; None if none of the widths parts the limits.

    Cells are 2**-bits wide; the number n from -1 to 1 belongs to cell ``round((n + 1) * 2**bits)``.

    Args:
        limits: ascending float32 of shape (count,).

    Returns:
        uint8 of shape (2**(bits + 1) + 1,), for as few bits as no two limits share a cell.
    """
    if not (np.abs(limits) < 1).all():
        return None
    for bits in range(1, CELL_BITS + 1):
        places = np.rint((limits.astype(np.float64) + 1) * 2**bits)
        if (np.diff(places) > 0).all():
            return np.searchsorted(places, np.arange(2 ** (bits + 1) + 1)).astype(np.uint8)
    return None


@cached(512)
def searches(map_: Map, build: Callable[[np.ndarray], T]) -> tuple[T, T]:
    """Searches for the nearest code, and for the lower of the two codes around a value.

    Args:
        map_: the map.
        build: makes a search among limits: `guesses` or `cells` of at most 8 bits, `wide_search`
            of more.
    """
    nearest, lower = limits_of(map_)
    return build(nearest.numpy()), build(lower.numpy())


def limits_of(map_: Map) -> tuple[Tensor, Tensor]:
    """The limits between nearest codes, and those between lower codes."""
    values = table(map_)
    # n >= value is n > the float below it.
    return limits(map_), torch.nextafter(values[1:], values.new_tensor(-torch.inf))


def wide_search(above: np.ndarray) -> tuple[np.ndarray, int]:
    """A search among the limits between more than 256 codes; see ``src/wide_codebook.cuh``.

    Args:
        above: ascending float32 limits of shape (count,), fewer than 65536.

    Returns:
        uint16 of shape (65536,): the number of limits below all floats with these upper 16 bits, in
        the order of numbers; and the remaining halvings: at most ``2**steps - 1`` limits share
        those bits.
    """
    bits = (above + 0.0).view(np.uint32)  # -0 becomes 0
    order = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31)) >> 16
    counts = np.bincount(order, minlength=1 << 16)
    below = np.cumsum(counts) - counts
    return below.astype(np.uint16), int(counts.max()).bit_length()
