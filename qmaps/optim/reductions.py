"""Sums with bits that depend only on the elements and their order.

The square of a float32 is exact in float64. Sums are float64, and each is taken in one order:

- over a row, in chunks of 512 numbers: number i of a chunk goes to lane i % 32, a lane adds its
  numbers in their order, and the lanes are added as a balanced tree, the first half to the second;
- over a column, in chunks of 64 numbers, each added in their order;
- over a whole tensor in the order of `qmaps.optim.norms`.

The chunks' sums, filled up with zeros to a power of two, are added by the tree of the lanes. So
a tile of 64 rows by 512 columns gives its shares of all sums in one reading, to a vector unit as to
a warp of threads. Results are rounded to float32 once.

Norms along dimensions, on the reference alone, are sums in the order of a tree:
while more than one number is left, h is half of their count, rounded up, and number i takes number
i + h to it.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from qmaps.engines.sharding import over_shards
from qmaps.float32 import padded, tree
from qmaps.optim.norms import square_sum

LANES = 32
ROW_CHUNK = 512
"""Numbers of a row that are added first."""
COLUMN_CHUNK = 64
"""Numbers of a column that are added first."""


def row_means(x: Tensor, dim: int = -1) -> Tensor:
    """Means of float32 `x` over its last dimension, the parameter's `dim`, kept with size 1.

    >>> row_means(torch.tensor([[1.0, 2.0, 6.0]]))
    tensor([[3.]])
    """
    *outer, rows, columns = x.shape
    chunks = -(-columns // ROW_CHUNK)
    # Zeros that are added change nothing: no sum is -0.
    x = padded(x.double(), 0, chunks * ROW_CHUNK - columns)
    x = x.reshape(*outer, rows, chunks, ROW_CHUNK // LANES, LANES)
    sums = over_shards.total(tree(tree(_in_order(x, -2))), (dim,))
    return _over(sums, over_shards.size(columns, dim)).float().unsqueeze(-1)


def column_means(x: Tensor) -> Tensor:
    """Means of float32 `x` over the dimension before its last, kept with size 1.

    >>> column_means(torch.tensor([[1.0, 2.0], [5.0, 6.0]]))
    tensor([[3., 4.]])
    """
    *outer, rows, columns = x.shape
    chunks = -(-rows // COLUMN_CHUNK)
    x = padded(x.double(), 0, 0, 0, chunks * COLUMN_CHUNK - rows)
    x = _in_order(x.reshape(*outer, chunks, COLUMN_CHUNK, columns), -2)
    sums = over_shards.total(tree(x.transpose(-1, -2)), (-2,))
    return _over(sums, over_shards.size(rows, -2)).float().unsqueeze(-2)


def tree_sum(x: Tensor, dim: int) -> Tensor:
    """Sum over one dimension, kept with size 1; zero where it is empty.

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


def rms(x: Tensor) -> Tensor:
    """Root of the mean square of all elements of float32 `x`, 0-d; 0 where there is none."""
    total = square_sum(x)
    return _over(total, over_shards.numel(x)).sqrt().float()


def whole_norm(x: Tensor) -> Tensor:
    """Euclidean norm of all elements of float32 `x`, 0-d, in the order of `norm`.

    Of a part (`qmaps.engines.sharding.over_shards`) it is that of the whole.
    """
    return over_shards.total(_square_sum(x.reshape(-1), (0,))).sqrt().float().reshape(())


def norm(x: Tensor, dims: Iterable[int]) -> Tensor:
    """Euclidean norm of float32 `x` over some dimensions, kept with size 1."""
    return _square_sum(x, dims).sqrt().float()


def _square_sum(x: Tensor, dims: Iterable[int]) -> Tensor:
    total = x.double()
    total = total * total
    for dim in dims:
        total = tree_sum(total, dim)
    return total


def _over(total: Tensor, count: int) -> Tensor:
    # A tensor divisor: CUDA turns division by a Python number into a product.
    return total / torch.full_like(total, max(count, 1))


def _in_order(x: Tensor, dim: int) -> Tensor:
    """The sum over one dimension, removed from the result."""
    total = x.select(dim, 0).clone()
    for number in range(1, x.shape[dim]):
        total += x.select(dim, number)
    return total
