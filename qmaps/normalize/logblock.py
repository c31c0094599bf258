"""The log2 range of each block."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from qmaps.normalize._float32 import exp2, log2
from qmaps.normalize.base import Layout, Normalizer, Scales, Shape
from qmaps.normalize.block import blocks, check_block_size, per_element
from qmaps.normalize.extent import Extent
from qmaps.normalize.geometry import Geometry, Part


@dataclass(frozen=True)
class LogBlock(Normalizer, name="logB<n>"):
    """log2 of the smallest and of the largest non-zero value of each block.

    Normalizes x > 0 to its position ``(log2(x) - low) / (high - low)`` in [0, 1] (1 where
    both ends agree) and zero to -1, which the map `log2` holds for it. A block of zeros has
    both ends 0. In a block with a NaN, an infinity or a negative value, which `quantize` refuses,
    an end is NaN, so that all but its zeros decode to NaN. Goes with `log2` only; two float32
    per block.

    Source: 8-bit Adafactor, "log-space quantization".
    """

    log_domain: ClassVar[bool] = True

    size: int

    def __post_init__(self) -> None:
        check_block_size(self.size)

    @classmethod
    def parse(cls, text: str) -> Normalizer | None:
        match = re.fullmatch(r"logb(\d+)", text, re.IGNORECASE | re.ASCII)
        return cls(int(match[1])) if match else None

    @property
    def spec(self) -> str:
        return f"logB{self.size}"

    def layout(self, shape: Shape) -> Layout:
        count = -(-math.prod(shape) // self.size)
        return ((torch.float32, (count,)), (torch.float32, (count,)))

    def geometry(self, shape: Shape) -> Geometry:
        numel = math.prod(shape)
        size = min(self.size, max(1, numel))
        count = -(-numel // size)
        return Geometry((Part(size, count, 0), Part(size, count, 1)), arrays=2, log=True)

    def extents(self, dims: int) -> tuple[Extent, ...]:
        return Extent(block=self.size), Extent(block=self.size)

    def scales(self, x: Tensor) -> Scales:
        if x.numel() == 0:
            return x.new_zeros(0), x.new_zeros(0)
        rows = blocks(x, min(self.size, x.numel()))
        high = rows.amax(dim=1)
        low = torch.where(rows == 0, high[:, None], rows).amin(dim=1)
        high = torch.where(low < 0, low, high)
        low_log2, high_log2 = (
            torch.where(end == 0, 0.0, log2(torch.where(end == 0, 1.0, end))) for end in (low, high)
        )
        return low_log2, high_log2

    def normalize(self, x: Tensor, scales: Scales) -> Tensor:
        low, high = self._ends(scales, tuple(x.shape))
        width = high - low
        position = (log2(torch.where(x == 0, 1.0, x)) - low) / width
        position = torch.where(width == 0, torch.ones_like(x), position)
        return torch.where(x == 0, -torch.ones_like(x), position)

    def denormalize(self, values: Tensor, scales: Scales) -> Tensor:
        low, high = self._ends(scales, tuple(values.shape))
        # log2 of the largest float32 rounds to 128, whose power is infinite; NaN stays NaN.
        largest = torch.finfo(torch.float32).max
        decoded = exp2(low + values * (high - low)).clamp(max=largest)
        return torch.where(values < 0, torch.zeros_like(values), decoded)

    def expand(self, scales: Scales, shape: Shape) -> Tensor:
        """The largest magnitude of each element's block, up to rounding; 1 for zeros."""
        return exp2(self._ends(scales, shape)[1])

    def _ends(self, scales: Scales, shape: Shape) -> tuple[Tensor, Tensor]:
        size = min(self.size, max(1, math.prod(shape)))
        return per_element(scales[0], size, shape), per_element(scales[1], size, shape)
