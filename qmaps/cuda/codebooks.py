"""Codebooks on a device, in the form searched by kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qmaps.cuda import layout
from qmaps.engines.addresses import address
from qmaps.engines.kernels.declarations import Dtype
from qmaps.engines.search_tables import cells, guesses, limits_of, searches, wide_search
from qmaps.maps.base import Map, cached, limits, table

BYTE = 8
"""Bits of the codes whose tables kernels copy to shared memory."""
CELLS = -1
"""``kCells`` of ``src/codebook.cuh``."""
NAMES = ("nearest", "lower")
HALVES = {torch.float16: Dtype.FLOAT16, torch.bfloat16: Dtype.BFLOAT16}


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
        for name, above, start, counts in zip(NAMES, limits_of(map_), *made, strict=True):
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
        for name, above, (below, steps) in zip(NAMES, limits_of(map_), made, strict=True):
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
