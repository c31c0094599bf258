"""Codebooks on a device, in the form searched by kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from qmaps.cuda import layout
from qmaps.engines.addresses import address
from qmaps.engines.kernels.declarations import Dtype
from qmaps.maps.base import Map, cached, limits, table

T = TypeVar("T")

MANTISSA_BITS = 23

BYTE = 8
"""Bits of the codes whose tables kernels copy to shared memory."""
CELL_BITS = 10
"""At most, of `cells`."""
CELLS = -1
"""``kCells`` of ``src/codebook.cuh``."""
NAMES = ("nearest", "lower")
HALVES = {torch.float16: Dtype.FLOAT16, torch.bfloat16: Dtype.BFLOAT16}


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
        if sides * buckets > layout.MAX_GUESSES:
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
    nearest, lower = _limits(map_)
    return build(nearest.numpy()), build(lower.numpy())


def _limits(map_: Map) -> tuple[Tensor, Tensor]:
    """The limits between nearest codes, and those between lower codes."""
    values = table(map_)
    # n >= value is n > the float below it.
    return limits(map_), torch.nextafter(values[1:], values.new_tensor(-torch.inf))


@dataclass(frozen=True)
class Half:
    """Codebook of all finite numbers of a 16-bit format; see ``kernels/half_codes.hpp``.

    Attributes:
        dtype: float16 or bfloat16.
        zero: the code of zero.
        above: number of codes above it.
    """

    dtype: torch.dtype
    zero: int
    above: int

    def holds(self, values: Tensor, above: Tensor) -> bool:
        """Return True if codes have these ascending values, and `above` are limits between them."""
        codes = torch.arange(values.numel(), dtype=torch.int32)
        bits = torch.where(codes < self.zero, (self.zero - codes) | 0x8000, codes - self.zero)
        held = bits.to(torch.int16).view(self.dtype).float()
        if not torch.equal(held.view(torch.int32), values.view(torch.int32)):
            return False
        beyond = torch.nextafter(above, above.new_tensor(torch.inf))
        below = torch.equal(self._codes(above), codes[:-1])
        return below and torch.equal(self._codes(beyond), codes[1:])

    def _codes(self, x: Tensor) -> Tensor:
        bits = x.to(self.dtype).view(torch.int16).to(torch.int32)
        magnitude = (bits & 0x7FFF).clamp(max=self.above)
        return torch.where(
            bits < 0, self.zero - magnitude.clamp(max=self.zero), self.zero + magnitude
        )


@cached(512)
def half(map_: Map) -> Half | None:
    """The 16-bit format with the same numbers as a map of 16 bits; None for other maps."""
    values = table(map_)
    last = values.numel() - 1
    zero = last // 2 if float(values[0]) < 0 else 0
    if map_.bits != 16 or last - zero >= 1 << 15:
        return None
    candidates = (Half(dtype, zero, last - zero) for dtype in HALVES)
    return next((codes for codes in candidates if codes.holds(values, limits(map_))), None)


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


def searching(map_: Map, *, stochastic: bool, bounded: bool) -> tuple[bool, int]:
    """``kSigned`` and ``kSteps`` of the kernels' search for the codes of a map.

    Args:
        map_: the map.
        stochastic: whether codes are rounded stochastically.
        bounded: whether all numbers that are encoded lie between -1 and 1.
    """
    if map_.bits > BYTE:
        return False, 0 if half(map_) else searches(map_, wide_search)[stochastic][1]
    table = searches(map_, guesses)[stochastic]
    in_cells = bounded and searches(map_, cells)[stochastic] is not None
    return len(table.counts) > table.buckets, CELLS if in_cells else table.steps


class DeviceCodebook:
    """The tables of one map on one device.

    Attributes:
        memory: the memory of all tables.
        described: the addresses of the tables, as ``Codebook``.
    """

    def __init__(self, map_: Map, device: torch.device) -> None:
        values = table(map_)
        self.described = np.zeros((), dtype=layout.CODEBOOK)
        self.described["size"] = values.numel()
        self.described["ties"] = bool((values[1:] == values[:-1]).any())
        self.described["in_log"] = map_.position_rounding
        self.described["bend"] = map_.bend
        self._pieces: list[bytes] = []
        self._places: list[tuple[np.ndarray, str, int]] = []
        (self._describe_wide if map_.bits > BYTE else self._describe)(map_)
        self.memory: Tensor = torch.frombuffer(bytearray(b"".join(self._pieces)), dtype=torch.uint8)
        self.memory = self.memory.to(device)
        for record, name, at in self._places:
            record[name] = address(self.memory) + at

    def _describe(self, map_: Map) -> None:
        self._add(self.described, "values", _filled(table(map_), layout.MAX_CODES))
        made = searches(map_, guesses), searches(map_, cells)
        for name, above, start, counts in zip(NAMES, _limits(map_), *made, strict=True):
            search = self.described[name]
            search["shift"], search["first"] = start.shift, start.first
            search["buckets"] = start.buckets
            search["negative"] = len(start.counts) - start.buckets
            # No limit is -0, whose sign kernels would read.
            self._add(search, "limit", _filled(above + 0.0, 2 * layout.MAX_CODES, float("inf")))
            self._add(search, "guess", start.counts)
            if counts is not None:
                self._add(search, "cells", counts)
                search["cell_count"] = len(counts)
                search["cell"] = len(counts) // 2 * 2.0**-149

    def _describe_wide(self, map_: Map) -> None:
        if codes := half(map_):
            self.described["half"] = HALVES[codes.dtype].value
            self.described["zero"], self.described["most"] = codes.zero, codes.above
            self._pieces.append(bytes(16))  # so that there is memory
            return
        self._add(self.described, "values", _filled(table(map_), 1 << map_.bits))
        made = searches(map_, wide_search)
        for name, above, (below, steps) in zip(NAMES, _limits(map_), made, strict=True):
            filled = _filled(above, above.numel() + (1 << steps), float("inf"))
            self._add(self.described[name], "limit", filled)
            self._add(self.described[name], "below", below)

    def _add(self, record: np.ndarray, name: str, data: np.ndarray) -> None:
        """Add a table; its address is written to a field."""
        self._places.append((record, name, sum(map(len, self._pieces))))
        content = data.tobytes()
        self._pieces.append(content + bytes(-len(content) % 16))


def _filled(values: Tensor, size: int, filling: float | None = None) -> np.ndarray:
    """Float32 values, and then the filling, or the last value for None, up to this size."""
    filled = np.full(size, values[-1].item() if filling is None else filling, dtype=np.float32)
    filled[: values.numel()] = values.numpy()
    return filled


@cached(512)
def codebook(map_: Map, device: torch.device) -> DeviceCodebook:
    """The map's tables on `device`."""
    return DeviceCodebook(map_, device)
