"""Scales stored in eight bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from qmaps.float32 import exp2, log2
from qmaps.normalize.base import Scales
from qmaps.normalize.scale_format import ScaleFormat
from qmaps.normalize.scale_kind import ScaleKind

STEPS = 254


@dataclass(frozen=True)
class EightBit(ScaleFormat, suffix="x8"):
    """``inner`` with its scales in 8 bits, for small blocks.

    Code 0 is scale 0; codes 1 to 255 are a log2 grid from the tensor's smallest to its
    largest non-zero scale, both held exactly. Scales are rounded up, so nothing clips. Stored
    besides the codes: the two ends of the grid, float32.
    """

    dtype: ClassVar[torch.dtype] = torch.uint8
    kind: ClassVar[ScaleKind | None] = ScaleKind.FLOAT32
    shared: ClassVar[int] = 2

    def stored(self, parts: Sequence[Tensor], ends: Tensor) -> Scales:
        """Float32 scales rounded up to the grid between these ends, in the parts of `layout`."""
        joined = torch.cat([part.reshape(-1) for part in parts])
        grid = _grid(ends)
        codes = torch.searchsorted(grid, joined).clamp(max=STEPS) + 1
        codes = torch.where(joined == 0, 0, codes).to(torch.uint8)
        sizes = [part.numel() for part in parts]
        split = [c.view(p.shape) for c, p in zip(torch.split(codes, sizes), parts, strict=True)]
        return (*split, ends)

    def read(self, scales: Scales) -> Scales:
        *codes, ends = scales
        table = torch.cat([ends.new_zeros(1), _grid(ends)])
        return tuple(table[part.long()] for part in codes)


def _grid(ends: Tensor) -> Tensor:
    """The 255 non-zero scales between ``ends[0]`` and ``ends[1]``, ascending, ends exact."""
    low, high = ends[0], ends[1]
    if not math.isfinite(float(high)):
        return ends.new_full((STEPS + 1,), math.nan)
    if float(high) == 0:
        return ends.new_zeros(STEPS + 1)
    # On the CPU: CUDA turns division by a Python number into a product.
    step = (torch.arange(STEPS + 1, dtype=torch.float32) / STEPS).to(ends.device)
    low_log2 = log2(low)
    grid = exp2(low_log2 + step * (log2(high) - low_log2))
    grid = torch.minimum(torch.maximum(grid, low), high)
    grid[0], grid[-1] = low, high
    return grid.cummax(0).values
