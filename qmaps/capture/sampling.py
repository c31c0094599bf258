"""Samples of tensors in whole rows and, if widths allow it, whole blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

BLOCK = 2048
"""Blocks of this size, and of every size that divides it, stay whole."""


def unit(shape: Sequence[int]) -> int:
    """Return the number of consecutive rows in a unit of a sample.

    A row is an index of the first dimension. If it starts at a multiple of it, a unit holds whole
    blocks of 2048 elements of the flattened tensor. Where that would take more than half of the
    rows, it holds as many whole rows as 2048 elements need, and blocks are cut at its ends.

    Args:
        shape: shape of the tensor, of at least one dimension.

    >>> unit([50257, 768]), unit([2048, 1000]), unit([10000])
    (8, 256, 2048)
    >>> unit([300, 1000])
    3
    """
    width = max(1, math.prod(shape[1:]))
    rows = math.lcm(width, BLOCK) // width
    if 2 * rows > shape[0]:
        rows = -(-BLOCK // width)
    return max(1, min(rows, shape[0]))


def rows_of(shape: Sequence[int], elements: int) -> Tensor | None:
    """Choose rows of a tensor, spread evenly over it.

    Args:
        shape: shape of the tensor.
        elements: about how many elements the sample should have. It has at least one unit; see
            `unit`.

    Returns:
        Indices of the first dimension, ascending, int64; None if the sample is the whole tensor.

    >>> rows_of([64, 768], 2 * 8 * 768)
    tensor([16, 17, 18, 19, 20, 21, 22, 23, 48, 49, 50, 51, 52, 53, 54, 55])
    """
    if not shape or math.prod(shape) <= elements:
        return None
    length = unit(shape)
    available = shape[0] // length
    wanted = max(1, elements // (length * max(1, math.prod(shape[1:]))))
    if wanted >= available:
        return None
    starts = (2 * torch.arange(wanted) + 1) * available // (2 * wanted) * length
    return (starts[:, None] + torch.arange(length)).reshape(-1)


def samples(
    shapes: Mapping[str, Sequence[int]], itemsizes: Mapping[str, int], max_bytes: int
) -> dict[str, Tensor | None] | None:
    """Choose rows of several tensors, the same share of each, within a number of bytes.

    Args:
        shapes: shape of each tensor.
        itemsizes: bytes per element of each tensor.
        max_bytes: largest number of bytes of the samples and the indices of their rows.

    Returns:
        As `rows_of` for each tensor; None if one unit of each is too much.
    """
    low, high = 0.0, 1.0
    best = _shared(shapes, 1.0)
    if nbytes(shapes, itemsizes, best) <= max_bytes:
        return best
    best = _shared(shapes, 0.0)
    if nbytes(shapes, itemsizes, best) > max_bytes:
        return None
    for _ in range(20):
        middle = (low + high) / 2
        chosen = _shared(shapes, middle)
        if nbytes(shapes, itemsizes, chosen) <= max_bytes:
            low, best = middle, chosen
        else:
            high = middle
    return best


def nbytes(
    shapes: Mapping[str, Sequence[int]],
    itemsizes: Mapping[str, int],
    rows: Mapping[str, Tensor | None],
) -> int:
    """Return the bytes of samples and of the indices of their rows."""
    total = 0
    for name, shape in shapes.items():
        chosen = rows[name]
        count = math.prod(shape)
        if chosen is not None:
            count = len(chosen) * math.prod(shape[1:])
            total += chosen.nbytes
        total += count * itemsizes[name]
    return total


def _shared(shapes: Mapping[str, Sequence[int]], share: float) -> dict[str, Tensor | None]:
    return {
        name: rows_of(shape, round(share * math.prod(shape))) if share < 1 else None
        for name, shape in shapes.items()
    }
