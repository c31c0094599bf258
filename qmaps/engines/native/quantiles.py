"""Order statistics on the native engine.

They serve `qmaps.quantiles`, for 1-D tensors on the CPU. Each function also returns how many
elements are NaN or infinite; if there are any, its other results are meaningless.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qmaps.engines.addresses import address
from qmaps.engines.native import core
from qmaps.engines.native.tensors import DTYPES, threads

LONGEST = 1 << 17
"""Elements of a stretch that one thread sorts on its own."""


def order_statistics(x: Tensor, ranks: Tensor) -> tuple[Tensor, int]:
    """The elements of `x`, of shape (n,), at these ranks in ascending order.

    Args:
        x: float32, float16, bfloat16; others are converted to float32.
        ranks: int64 of shape (count,), each in [0, n), in any order.

    Returns:
        float32 of shape (count,), and the number of NaN or infinite elements. Negative
        zeros come before positive ones.
    """
    x = _readable(x)
    values = torch.empty(ranks.numel(), dtype=torch.float32)
    bad = core.order_statistics(
        *_elements(x), address(ranks), ranks.numel(), address(values), threads(x.numel())
    )
    return values, bad


def leading_bits(x: Tensor, ranks: Tensor) -> tuple[Tensor, int]:
    """For each rank, where it lies among the cells of float32 values with the same top 18 bits.

    Args:
        x: as in `order_statistics`.
        ranks: the same.

    Returns:
        int64 of shape (3, count): the cell's bits, the elements in lower cells, those in its own;
        and the number of NaN or infinite elements.
    """
    x = _readable(x)
    counts = torch.empty(3, ranks.numel(), dtype=torch.int64)
    bad = core.leading_bits(
        *_elements(x), address(ranks), ranks.numel(), address(counts), threads(x.numel())
    )
    return counts, bad


def add_quantiles(x: Tensor, size: int, below: Tensor, fraction: Tensor, sums: Tensor) -> int:
    """Add to `sums` the quantiles of each stretch of `size` elements, times `size`, in order.

    Args:
        x: as in `order_statistics`; its number of elements is a multiple of `size`.
        size: elements of a stretch, at most `LONGEST`.
        below: int64 of shape (num,): for each quantile the rank in a stretch at or below it.
        fraction: float64 of shape (num,): the quantile's position between that rank and the next,
            in [0, 1).
        sums: contiguous float64 of shape (num,), changed in place.

    Returns:
        The number of NaN or infinite elements.
    """
    x = _readable(x)
    bad: int = core.add_quantiles(
        *_elements(x),
        size,
        address(below),
        address(fraction),
        below.numel(),
        address(sums),
        threads(x.numel()),
    )
    return bad


def _readable(x: Tensor) -> Tensor:
    return (x if x.dtype in DTYPES else x.float()).contiguous()


def _elements(x: Tensor) -> tuple[int, int, int]:
    return address(x), DTYPES[x.dtype], x.numel()
