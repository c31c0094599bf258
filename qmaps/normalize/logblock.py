"""The log2 range of each block, or its upper part."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from qmaps.errors import BadTypeError, BadValueError, shown
from qmaps.float32 import exp2, log2
from qmaps.normalize.base import Layout, Normalizer, Scales, Shape
from qmaps.normalize.block import blocks, blocks_of, check_block_size, per_element
from qmaps.normalize.geometry import Extent, Geometry, Part

ZERO = -250.0
"""Both ends of a block of zeros: its power of 2 is 0 in float32."""


@dataclass(frozen=True)
class LogBlock(Normalizer, name="logB<n>"):
    """log2 of the smallest and of the largest non-zero value of each block.

    Normalizes x > 0 to its position ``(log2(x) - low) / (high - low)`` in [0, 1] (1 where
    both ends agree) and zero to -1, which the map `log2` holds for it. A block of zeros has
    both ends -250, and decodes to zeros. In a block with a NaN, an infinity or a negative value,
    which `quantize` refuses, an end is NaN, so that all but its zeros decode to NaN. Goes with
    `log2` and `log2-0` only; two float32 per block.

    With ``logB<n>q<p>`` the lower end is the quantile p of the block's non-zero values,
    interpolated between neighbours; values below it have positions below 0. Under `log2-0` they
    take the lower end. Under `log2` they round between that and zero.

    Source: 8-bit Adafactor, "log-space quantization"; its quantile: SOLO, Xu et al., 2025, whose
    released code (package solow 0.2.0) counts zeros too.

    Attributes:
        size: elements of a block.
        quantile: from 0, the smallest value, to 1.
    """

    log_domain: ClassVar[bool] = True
    linear: ClassVar[bool] = False

    size: int
    quantile: float = 0.0

    def __post_init__(self) -> None:
        check_block_size(self.size)
        if isinstance(self.quantile, bool) or not isinstance(self.quantile, (int, float)):
            raise BadTypeError(f"quantile={shown(self.quantile)} must be a float")
        if not 0 <= self.quantile <= 1:
            raise BadValueError(f"quantile={shown(self.quantile)} must be between 0 and 1")
        object.__setattr__(self, "quantile", float(self.quantile))  # as a frozen dataclass does it

    @classmethod
    def parse(cls, text: str) -> Normalizer | None:
        number = r"\d+(?:\.\d+)?(?:e-?\d+)?"
        match = re.fullmatch(rf"logb(\d+)(?:q({number}))?", text, re.IGNORECASE | re.ASCII)
        return cls(int(match[1]), float(match[2] or 0)) if match else None

    @property
    def spec(self) -> str:
        quantile = f"q{repr(self.quantile).removesuffix('.0')}" if self.quantile else ""
        return f"logB{self.size}{quantile}"

    def layout(self, shape: Shape) -> Layout:
        count = -(-math.prod(shape) // self.size)
        return ((torch.float32, (count,)), (torch.float32, (count,)))

    def geometry(self, shape: Shape) -> Geometry:
        size, count = blocks_of(self.size, shape)
        parts = (Part(size, count, 0), Part(size, count, 1))
        return Geometry(parts, arrays=2, log=True, quantile=self.quantile)

    def zero_scales(self, shape: Shape, device: torch.device | str = "cpu") -> Scales:
        return tuple(part.fill_(ZERO) for part in super().zero_scales(shape, device))

    def extents(self, dims: int) -> tuple[Extent, ...]:
        return Extent(block=self.size), Extent(block=self.size)

    def scales(self, x: Tensor) -> Scales:
        if x.numel() == 0:
            return x.new_zeros(0), x.new_zeros(0)
        rows = blocks(x, self.size)
        high = rows.amax(dim=1)
        low = torch.where(rows == 0, high[:, None], rows).amin(dim=1)
        high = torch.where(low < 0, low, high)
        if self.quantile:
            low = torch.where(high.isfinite() & (high >= 0), _quantile(rows, self.quantile), high)
        low_log2, high_log2 = (
            torch.where(end == 0, ZERO, log2(torch.where(end == 0, 1.0, end)))
            for end in (low, high)
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
        """The largest magnitude of each element's block, up to rounding."""
        return exp2(self._ends(scales, shape)[1])

    def _ends(self, scales: Scales, shape: Shape) -> tuple[Tensor, Tensor]:
        return per_element(scales[0], self.size, shape), per_element(scales[1], self.size, shape)


def _quantile(rows: Tensor, quantile: float) -> Tensor:
    """The quantile of the non-zero values of each row, 0 where there are none.

    With values a and b around the place ``quantile * (count - 1)``, a float64, and its fraction f
    rounded to float32: ``a + f * (b - a)`` in float32 operations.
    """
    count = (rows != 0).sum(dim=1, keepdim=True)
    ascending = torch.where(rows == 0, torch.inf, rows).sort(dim=1).values
    last = (count - 1).clamp(min=0)
    place = last.double() * torch.full_like(last, quantile, dtype=torch.float64)
    below = place.floor()
    fraction = (place - below).float()
    a = ascending.gather(1, below.long())
    b = ascending.gather(1, torch.minimum(below.long() + 1, last))
    return torch.where(count == 0, 0.0, a + fraction * (b - a))[:, 0]
