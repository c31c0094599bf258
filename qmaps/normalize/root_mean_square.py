"""A multiple of the root mean square of each block."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import torch
from torch import Tensor

from qmaps.errors import BadTypeError, BadValueError, shown
from qmaps.float32 import tree
from qmaps.normalize.base import Layout, Normalizer, Scales, Shape
from qmaps.normalize.block import BlockWise, blocks, check_block_size, per_element
from qmaps.normalize.geometry import Extent

_LARGEST = torch.finfo(torch.float32).max
_SMALLEST = 2.0**-149


@dataclass(frozen=True)
class RootMeanSquare(Normalizer, name="rms<k>B<n>"):
    """`factor` times the root mean square of each block of `size` elements, in row-major order.

    Larger elements take the codebook's end. ``rms4B128&B128`` divides by the largest magnitude
    where that is smaller. A block of at least as many elements as the tensor is the whole tensor.
    As a norm, ``rms16B256`` is the Frobenius norm of blocks of 256, 16 being the root of 256.

    The squares, exact in float64, are added as a balanced tree, the first half to the second, after
    zeros that fill the block up to a power of two. The rest is one float64 operation each: the sum
    by the number of elements, its root, the product with `factor`, and rounding to float32. Nonzero
    results are at least the smallest float32, finite ones at most the largest.

    Source: QSGD, Alistarh et al., 2017, section 3.1 and 4, with buckets divided by their norm.

    Attributes:
        factor: above 0; the largest unclipped magnitude, in units of the root mean square.
        size: elements of a block.
    """

    factor: float
    size: int

    def __post_init__(self) -> None:
        if isinstance(self.factor, bool) or not isinstance(self.factor, (int, float)):
            raise BadTypeError(f"factor={shown(self.factor)} must be a float")
        if not (math.isfinite(self.factor) and self.factor > 0):
            raise BadValueError(f"factor={shown(self.factor)} must be finite and above 0")
        object.__setattr__(self, "factor", float(self.factor))  # as a frozen dataclass does it
        check_block_size(self.size)

    @classmethod
    def parse(cls, text: str) -> Normalizer | None:
        number = r"\d+(?:\.\d+)?(?:e[-+]?\d+)?"
        match = re.fullmatch(rf"rms({number})b(\d+)", text, re.IGNORECASE | re.ASCII)
        return cls(float(match[1]), int(match[2])) if match else None

    @property
    def spec(self) -> str:
        return f"rms{repr(self.factor).removesuffix('.0')}B{self.size}"

    @property
    def clips(self) -> bool:
        return True

    def layout(self, shape: Shape) -> Layout:
        return BlockWise(self.size).layout(shape)

    def extents(self, dims: int) -> tuple[Extent, ...]:
        return (Extent(block=self.size),)

    def scales(self, x: Tensor) -> Scales:
        rows = blocks(x, self.size)
        sums = tree(rows.double().square())
        size = rows.shape[1]
        counts = torch.full_like(sums, size)
        if x.numel() % size:
            counts[-1] = x.numel() % size
        root = (sums / counts).sqrt() * torch.full_like(sums, self.factor)
        bounded = torch.where(root.isfinite(), root.clamp(max=_LARGEST), root)
        floor = torch.where(sums > 0, _SMALLEST, 0.0)
        return (torch.maximum(bounded.float(), floor.float()),)

    def expand(self, scales: Scales, shape: Shape) -> Tensor:
        return per_element(scales[0], self.size, shape)
