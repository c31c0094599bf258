"""Order statistics on the native engine.

The functions are those of `qmaps.engines.order_statistics.Executor`, for tensors on the CPU.
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
    """The elements at these ranks in ascending order."""
    x = _readable(x)
    values = torch.empty(ranks.numel(), dtype=torch.float32)
    bad = core.order_statistics(
        *_elements(x), address(ranks), ranks.numel(), address(values), threads(x.numel())
    )
    return values, bad


def add_quantiles(x: Tensor, size: int, below: Tensor, fraction: Tensor, sums: Tensor) -> int:
    """Add quantiles of stretches to `sums`."""
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
