"""Norms of whole tensors, with the same bits on every engine.

A sum of many numbers depends on its order. This one depends on the number of elements alone, not
on threads, devices or launches: any engine that follows it gets the same float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qmaps.engines.sharding import over_shards

CHUNK = 4096
"""Elements whose squares are added first; a power of two."""
_PIECE = 256 * CHUNK  # float64 copies are no larger than this


def square_sum(x: Tensor) -> Tensor:
    """The sum of the squares of float32 `x`, a float64 scalar on its device.

    Elements in row-major order are squared in float64, which is exact, and zeros fill the last
    chunk of 4096. Each chunk is added as a balanced tree, the first half to the second, element by
    element, until one number is left. The chunks' sums, filled up with zeros to a power of two,
    are added by the same tree. Of a shard the sum is that of the whole tensor
    (`qmaps.engines.sharding.over_shards`).
    """
    flat = x.detach().reshape(-1)
    if flat.numel() == 0:
        return over_shards.total(torch.zeros((), dtype=torch.float64, device=x.device))
    sums = [_chunk_sums(piece.double()) for piece in torch.split(flat, _PIECE)]
    return over_shards.total(tree(_filled(torch.cat(sums), power_of_two(sum(map(len, sums))))))


def norm(x: Tensor) -> Tensor:
    """The square root of `square_sum`.

    >>> float(norm(torch.tensor([[3.0], [-4.0]])))
    5.0
    """
    return square_sum(x).sqrt()


def _chunk_sums(x: Tensor) -> Tensor:
    squares = _filled(x * x, -(-x.numel() // CHUNK) * CHUNK)
    return tree(squares.view(-1, CHUNK))


def tree(x: Tensor) -> Tensor:
    """The last dimension, a power of two, added up; plain sums of tensors have no other order."""
    while (half := x.shape[-1] // 2) > 0:
        x = x[..., :half] + x[..., half:]
    return x[..., 0]


def _filled(x: Tensor, size: int) -> Tensor:
    return torch.cat([x, x.new_zeros(size - x.numel())]) if size > x.numel() else x


def power_of_two(count: int) -> int:
    """The smallest that is not below `count`."""
    return 1 << (count - 1).bit_length()
