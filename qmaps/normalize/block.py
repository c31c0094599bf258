"""One scale per block of the flattened tensor."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import torch
from torch import Tensor

from qmaps.errors import BadValueError, check_int, shown
from qmaps.normalize.base import Layout, Normalizer, Scales, Shape, largest
from qmaps.normalize.geometry import Extent, Geometry, Part

MOST = 2**53
"""What counts elements or steps is at most this: every int up to it is a float64."""


def check_block_size(size: int) -> None:
    """Raise unless `size` is an int from 1 to `MOST`."""
    check_int("block_size", size)
    if size < 1:
        raise BadValueError(f"block_size={shown(size)} must be at least 1")
    if size > MOST:
        raise BadValueError(f"block_size={shown(size)} must be at most 2**53")


def blocks_of(size: int, shape: Shape) -> tuple[int, int]:
    """Elements of a block in a tensor of `shape`, and the number of blocks."""
    numel = math.prod(shape)
    size = min(size, max(1, numel))  # a larger block must not fill up memory with zeros
    return size, -(-numel // size)


def blocks(x: Tensor, size: int) -> Tensor:
    """The flattened tensor as rows of `size` elements, the last one filled up with zeros."""
    flat = x.reshape(-1)
    size = blocks_of(size, tuple(x.shape))[0]
    missing = -flat.numel() % size
    return torch.nn.functional.pad(flat, (0, missing)).view(-1, size)


def per_element(per_block: Tensor, size: int, shape: Shape) -> Tensor:
    """The value of each element's block, in a tensor of `shape`; the last may be ragged."""
    elements = per_block[:, None].expand(-1, blocks_of(size, shape)[0]).reshape(-1)
    return elements[: math.prod(shape)].view(shape)


@dataclass(frozen=True)
class BlockWise(Normalizer, name="B<n>"):
    """The largest magnitude of each block of `size` elements, in row-major order.

    The last block is ragged where `size` does not divide the number of elements.

    Source: 8-bit optimizers, section 2.1.
    """

    size: int

    def __post_init__(self) -> None:
        check_block_size(self.size)

    @classmethod
    def parse(cls, text: str) -> Normalizer | None:
        match = re.fullmatch(r"b(\d+)", text, re.IGNORECASE | re.ASCII)
        return cls(int(match[1])) if match else None

    @property
    def spec(self) -> str:
        return f"B{self.size}"

    def layout(self, shape: Shape) -> Layout:
        return ((torch.float32, (-(-math.prod(shape) // self.size),)),)

    def geometry(self, shape: Shape) -> Geometry:
        return Geometry((Part(*blocks_of(self.size, shape)),))

    def extents(self, dims: int) -> tuple[Extent, ...]:
        return (Extent(block=self.size),)

    def scales(self, x: Tensor) -> Scales:
        return (largest(blocks(x, self.size), [1]),)

    def expand(self, scales: Scales, shape: Shape) -> Tensor:
        return per_element(scales[0], self.size, shape)


FLAT = BlockWise(128)
"""Stands in where a tensor has no second dimension to take maxima over."""
