"""Sums over elements whose bits depend on nothing but the elements and their order.

The square of a float32 is exact in float64. Sums are float64 in one order, that of a tree: while
more than one number is left, h is half of their count, rounded up, and number i takes number
i + h to it; over the whole of a tensor it is that of `qmaps._norms`. Results are rounded to float32
once.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from qmaps._norms import square_sum


def tree_sum(x: Tensor, dim: int) -> Tensor:
    """Sum over one dimension, which stays with size 1; zero where it is empty.

    Args:
        x: float64.
        dim: the dimension.

    >>> tree_sum(torch.tensor([[1.0, 2.0, 4.0]], dtype=torch.float64), -1)
    tensor([[7.]], dtype=torch.float64)
    """
    if x.shape[dim] == 0:
        return x.sum(dim, keepdim=True)
    while (count := x.shape[dim]) > 1:
        half = (count + 1) // 2
        first, second = x.narrow(dim, 0, half), x.narrow(dim, half, count - half)
        added = first.narrow(dim, 0, count - half) + second
        x = torch.cat([added, first.narrow(dim, count - half, 2 * half - count)], dim)
    return x


def mean(x: Tensor, dim: int) -> Tensor:
    """Mean of float32 `x` over one dimension, which stays with size 1."""
    total = tree_sum(x.double(), dim)
    # A tensor divisor: CUDA turns division by a Python number into a product.
    return (total / torch.full_like(total, max(x.shape[dim], 1))).float()


def rms(x: Tensor) -> Tensor:
    """Root of the mean square of all elements of float32 `x`, 0-d; 0 where there is none."""
    total = square_sum(x)
    return (total / torch.full_like(total, max(x.numel(), 1))).sqrt().float()


def norm(x: Tensor, dims: Iterable[int]) -> Tensor:
    """Euclidean norm of float32 `x` over some dimensions, which stay with size 1."""
    return _square_sum(x, dims).sqrt().float()


def _square_sum(x: Tensor, dims: Iterable[int]) -> Tensor:
    total = x.double()
    total = total * total
    for dim in dims:
        total = tree_sum(total, dim)
    return total
