"""Codebooks on a device, in the form that kernels search."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qmaps.cuda import layout
from qmaps.engines.addresses import address
from qmaps.maps.base import Map, limits, table

MANTISSA_BITS = 23
MAX_STEPS = 8

_LIMIT_BYTES = 2 * layout.MAX_CODES * 4
_VALUE_BYTES = layout.MAX_CODES * 4


@dataclass(frozen=True)
class Guesses:
    """Number of limits below all floats of a bucket; see ``Search`` in ``src/layout.cuh``.

    Attributes:
        shift: the floats of a bucket have equal bits, without the sign, from this bit up.
        first: those bits of the first bucket, which also holds all smaller magnitudes.
        buckets: the number of buckets of each sign; the last one holds all larger magnitudes.
        counts: uint8: a count for each positive bucket, then one for each negative bucket if there
            are negative limits; else negative numbers take the first bucket.
        steps: halvings that remain for the search: at most ``2**steps - 1`` limits of a bucket are
            not counted.
    """

    shift: int
    first: int
    buckets: int
    counts: np.ndarray
    steps: int


def guesses(limits: np.ndarray) -> Guesses:
    """The table of at most `MAX_GUESSES` entries that leaves the fewest halvings.

    Of tables that leave equally few, it is the smallest.

    Args:
        limits: ascending float32 of shape (count,), with at most 255 elements.
    """
    magnitudes = np.abs(limits[limits != 0])
    low, high = (magnitudes.min(), magnitudes.max()) if magnitudes.size else (1.0, 1.0)
    ends = np.array([low, high], dtype=np.float32).view(np.uint32).astype(np.int64)
    sides = 2 if (limits < 0).any() else 1
    best: Guesses | None = None
    for kept in range(MANTISSA_BITS + 1):
        shift = MANTISSA_BITS - kept
        # One bucket for all below the smallest limit.
        first = max(int(ends[0] >> shift) - 1, 0)
        buckets = int(ends[1] >> shift) - first + 1
        if sides * buckets > layout.MAX_GUESSES:
            break
        found = _counted(limits, shift, first, buckets)
        if best is None or found.steps < best.steps:
            best = found
        if best.steps <= 1:
            break
    if best is None:  # limits from the smallest float to the largest: one bucket for all of them
        best = _counted(limits, 31, 0, 1)
    return best


def _counted(limits: np.ndarray, shift: int, first: int, buckets: int) -> Guesses:
    infinity = np.float32(np.inf).view(np.uint32).astype(np.int64)
    least = (np.arange(buckets, dtype=np.int64) + first) << shift
    least[0] = 0
    most = np.append(least[1:] - 1, infinity)
    near = np.minimum(least, infinity).astype(np.uint32).view(np.float32)
    far = np.minimum(most, infinity).astype(np.uint32).view(np.float32)
    # Limits below the smallest float of a bucket, and below its largest.
    below, upto = np.searchsorted(limits, near), np.searchsorted(limits, far)
    if (limits < 0).any():
        below = np.append(below, np.searchsorted(limits, -far))
        upto = np.append(upto, np.searchsorted(limits, -near))
    rest = int((upto - below).max())
    return Guesses(shift, first, buckets, below.astype(np.uint8), rest.bit_length())


@functools.lru_cache(maxsize=512)
def searches(map_: Map) -> tuple[Guesses, Guesses]:
    """The guesses for the nearest code, and those for the lower of the two codes around a value."""
    values = table(map_)
    return guesses(limits(map_).numpy()), guesses(_below(values).numpy())


def _below(values: Tensor) -> Tensor:
    # n >= value is n > the float below it.
    return torch.nextafter(values[1:], torch.tensor(-torch.inf))


class DeviceCodebook:
    """The tables of one map on one device.

    Attributes:
        memory: the memory of all tables.
        described: the addresses of the tables, as ``Codebook``.
    """

    def __init__(self, map_: Map, device: torch.device) -> None:
        values = table(map_)
        pair = (limits(map_), _below(values))
        padded = np.full(layout.MAX_CODES, values[-1].item(), dtype=np.float32)
        padded[: values.numel()] = values.numpy()
        pieces = [padded.tobytes()]
        self.described = np.zeros((), dtype=layout.CODEBOOK)
        self.described["size"] = values.numel()
        self.described["ties"] = bool((values[1:] == values[:-1]).any())
        self.described["in_log"] = map_.position_rounding
        offsets = [0]
        for above, found in zip(pair, searches(map_), strict=True):
            filled = np.full(2 * layout.MAX_CODES, np.inf, dtype=np.float32)
            filled[: above.numel()] = above.numpy()
            counts = found.counts.tobytes()
            offsets += [sum(map(len, pieces)), sum(map(len, pieces)) + _LIMIT_BYTES]
            pieces += [filled.tobytes(), counts + b"\0" * (-len(counts) % 16)]
        self.memory: Tensor = torch.frombuffer(bytearray(b"".join(pieces)), dtype=torch.uint8)
        self.memory = self.memory.to(device)
        base = address(self.memory)
        self.described["values"] = base
        for number, (name, found) in enumerate(
            zip(("nearest", "lower"), searches(map_), strict=True)
        ):
            search = self.described[name]
            search["limit"] = base + offsets[1 + 2 * number]
            search["guess"] = base + offsets[2 + 2 * number]
            search["shift"], search["first"] = found.shift, found.first
            search["buckets"] = found.buckets
            search["negative"] = len(found.counts) - found.buckets


@functools.lru_cache(maxsize=512)
def codebook(map_: Map, device: torch.device) -> DeviceCodebook:
    """The map's tables on `device`."""
    return DeviceCodebook(map_, device)
