"""Numbers with sums that depend on their order, in float32 and in float64."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

TINY = 5


def ticklish(shape: tuple[int, ...], seed: int) -> Tensor:
    """Nonnegative float32 numbers with sums of rows and columns that depend on their order.

    Each line along the longer of the last two dimensions has the same share of ones, as many
    2^-24, to bring its sum to the middle between two float32, and five times as many 2^-54: one or
    two of these are lost beside a 1; three together, before a 1, are not, and the sum rounds up.
    Each number is the square of a float32. Means over powers of two keep all this; lines of other
    lengths are as easy as any.
    """
    generator = torch.Generator().manual_seed(seed)
    rows, columns = (1, 1, *shape)[-2:]
    longer, shorter = max(rows, columns), min(rows, columns)
    x = torch.zeros(torch.Size(shape[:-2]).numel(), longer, shorter)
    if not x.numel():
        return x.reshape(shape)
    for value in (2.0**-54,) * TINY + (2.0**-24, 1.0):
        places = torch.rand(x.shape[:2], generator=generator).argsort(1) % shorter
        x.scatter_(2, places.unsqueeze(-1), value)
    return (x if rows >= columns else x.transpose(-1, -2)).reshape(shape)


@functools.lru_cache(maxsize=256)
def ticklish_gradient(shape: tuple[int, ...], seed: int) -> Tensor:
    """Gradients with `ticklish` squares; do not write to them."""
    signs = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return ticklish(shape, seed).sqrt() * signs
