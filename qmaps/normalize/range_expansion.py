"""A power for each block, to fill the range of a map."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from qmaps.errors import BadValueError, check_int, shown
from qmaps.float32 import exp2, log2
from qmaps.normalize.base import Layout, Normalizer, Scales, Shape
from qmaps.normalize.block import BlockWise, blocks, blocks_of, check_block_size, per_element
from qmaps.normalize.geometry import Extent, Geometry, Part
from qmaps.normalize.scale_kind import ScaleKind

STEPS = 16
"""Exponents are multiples of 1/16."""
MOST = 255


@dataclass(frozen=True)
class RangeExpansion(Normalizer, name="powB<n>r<n>"):
    """``sign(x) (|x| / scale)**k`` with the largest magnitude and an exponent k of each block.

    With k a block whose largest magnitude is r times its smallest one that is not 0 has the range
    `ratio`: ``k = log2(ratio) / log2(r)``, rounded down to a multiple of 1/16, at least 1/16 and at
    most 255/16. k is above 1 where a block's range is below `ratio`, so that the map uses all of
    its codes, and below 1 where it is wider. Stored are the largest magnitude (float32) and 16 k
    (8 bits) of each block.

    A value rounds to the nearest code in the transformed domain. Stochastic rounding is unbiased in
    the value. Powers are ``exp2(k * log2(x))`` of `qmaps.float32`. Does not combine with
    others.

    ``powB128r100352/e4m3@8s`` is COAT's dynamic range expansion, whose ratio for e4m3 is
    ``448 * 448 / 2``. COAT takes the smallest magnitude with zeros, as 1e-20, and divides by the
    root of the largest times the smallest before the power, which the scale after it cancels.

    Source: COAT, Xi et al., 2025, section 4, and its released kernels (in NVlabs/VILA).

    Attributes:
        size: elements of a block.
        ratio: an int of at least 1; the largest of a map's positive values divided by the
            smallest that it is to be given.
    """

    linear: ClassVar[bool] = False

    size: int
    ratio: int

    def __post_init__(self) -> None:
        check_block_size(self.size)
        check_int("ratio", self.ratio)
        if not 1 <= self.ratio <= 2**127:
            raise BadValueError(f"ratio={shown(self.ratio)} must be between 1 and 2**127")

    @classmethod
    def parse(cls, text: str) -> Normalizer | None:
        match = re.fullmatch(r"powb(\d+)r(\d+)", text, re.IGNORECASE | re.ASCII)
        return cls(int(match[1]), int(match[2])) if match else None

    @property
    def spec(self) -> str:
        return f"powB{self.size}r{self.ratio}"

    def layout(self, shape: Shape) -> Layout:
        count = -(-math.prod(shape) // self.size)
        return ((torch.float32, (count,)), (torch.uint8, (count,)))

    def geometry(self, shape: Shape) -> Geometry:
        size, count = blocks_of(self.size, shape)
        parts = (Part(size, count, 0), Part(size, count, 1, stored=ScaleKind.SIXTEENTHS))
        return Geometry(parts, arrays=2, log=True, ratio=float(self.ratio))

    def extents(self, dims: int) -> tuple[Extent, ...]:
        return Extent(block=self.size), Extent(block=self.size)

    def scales(self, x: Tensor) -> Scales:
        if x.numel() == 0:
            return x.new_zeros(0), torch.zeros(0, dtype=torch.uint8, device=x.device)
        rows = blocks(x, self.size).abs()
        high = rows.amax(dim=1)
        low = torch.where(rows == 0, high[:, None], rows).amin(dim=1)
        ends = [torch.where(end > 0, end, 1.0) for end in (low, high)]  # 1 for NaN and zeros
        wide = log2(ends[1]) - log2(ends[0])
        wanted = STEPS * log2(torch.full_like(wide, float(self.ratio)))
        steps = (wanted / wide).nan_to_num(nan=STEPS, posinf=MOST).floor().clamp(1, MOST)
        return high, steps.to(torch.uint8)

    def expand(self, scales: Scales, shape: Shape) -> Tensor:
        """The largest magnitude of each element's block."""
        return BlockWise(self.size).expand(scales[:1], shape)

    def normalize(self, x: Tensor, scales: Scales) -> Tensor:
        shape = tuple(x.shape)
        n = super().normalize(x, scales[:1])
        magnitude = n.abs()
        grown = exp2(self._exponents(scales, shape) * log2(torch.where(n == 0, 1.0, magnitude)))
        # log2 refuses infinity, which only what is not finite becomes here.
        return torch.where((n == 0) | ~n.isfinite(), n, grown.copysign(n))

    def denormalize(self, values: Tensor, scales: Scales) -> Tensor:
        shape = tuple(values.shape)
        magnitude = values.abs()
        root = log2(torch.where(values == 0, 1.0, magnitude)) / self._exponents(scales, shape)
        shrunk = torch.where(values == 0, values, exp2(root).copysign(values))
        return shrunk * self.expand(scales, shape)

    def _exponents(self, scales: Scales, shape: Shape) -> Tensor:
        # A state begins with the exponent 0, and a scale of 0.
        steps = per_element(scales[1].clamp(min=1).float(), self.size, shape)
        return steps / torch.full_like(steps, STEPS)
