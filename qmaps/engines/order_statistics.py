"""Order statistics and quantiles of flat tensors, in plain PyTorch.

`qmaps.ops.quantiles` says which quantiles these are. Faster engines have the members of `Executor`,
with the same bits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

CHUNK = 4096
"""Elements that SRAM-Quantiles sorts at a time, unless told otherwise."""

Count = int | Tensor
"""A number, or an integer tensor without dimensions, on a device that may still be at work."""


def levels_of(num: int, offset: float | None, device: torch.device) -> Tensor:
    """The float64 levels of `num` quantiles; see `qmaps.ops.quantiles`."""
    if offset is None:
        offset = 1 / (2 * num)
    i = torch.arange(num, dtype=torch.float64, device=device)
    return offset + i * ((1 - 2 * offset) / (num - 1))


def exact(flat: Tensor, levels: Tensor, executor: Any) -> tuple[Tensor, Count]:
    """Exact quantiles of 1-D `flat`, float32, and the number of NaN or infinite elements."""
    below, above, fraction = positions(levels, flat.numel())
    statistics, bad = executor.order_statistics(flat, torch.cat([below, above]))
    low, high = statistics.double().view(2, -1)
    return _between(low, high, fraction).float(), bad


def sram(
    flat: Tensor,
    levels: Tensor,
    chunk: int,
    add: Callable[[Tensor, int, Tensor, Tensor], Count],
) -> tuple[Tensor, Count]:
    """Quantiles by SRAM-Quantiles, float32, and the number of NaN or infinite elements.

    `add` is `add_quantiles` with an executor.
    """
    sums = torch.zeros(len(levels), dtype=torch.float64, device=flat.device)
    end = flat.numel() // chunk * chunk
    bad: Count = 0
    for part, size in ((flat[:end], chunk), (flat[end:], flat.numel() - end)):
        if part.numel():
            bad = bad + add(part, size, levels, sums)
    # Dividing by a Python number on CUDA would multiply by its reciprocal.
    return (sums / torch.full_like(sums, flat.numel())).float(), bad


def add_quantiles(part: Tensor, size: int, levels: Tensor, sums: Tensor, executor: Any) -> Count:
    """Add to `sums` the quantiles of each stretch of `size` elements, times `size`.

    Returns:
        The number of NaN or infinite elements.
    """
    below, above, fraction = positions(levels, size)
    if size <= executor.LONGEST:
        counted: Count = executor.add_quantiles(part, size, below, fraction, sums)
        return counted
    total: Count = 0
    for stretch in part.view(-1, size):
        values, bad = executor.order_statistics(stretch, torch.cat([below, above]))
        low, high = values.double().view(2, -1)
        sums += _between(low, high, fraction) * size
        total = total + bad
    return total


def quantiles(values: Tensor, num: int, offset: float | None = None) -> Tensor:
    """Exact quantiles of finite 1-D `values` on the CPU, those of SRAM-Quantiles on CUDA."""
    levels, executor = levels_of(num, offset, values.device), Executor()
    if not values.is_cuda:
        return exact(values, levels, executor)[0]
    return sram(values, levels, CHUNK, partial(add_quantiles, executor=executor))[0]


def positions(levels: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the ranks on both sides of each level, and the fraction between them."""
    position = (levels * (count - 1)).clamp(0, count - 1)
    below = position.floor()
    above = (below.long() + 1).clamp(max=count - 1)
    return below.long(), above, position - below


def _between(low: Tensor, high: Tensor, fraction: Tensor) -> Tensor:
    return low + (high - low) * fraction


class Executor:
    """Order statistics in plain PyTorch, from sorted elements; other engines have these members.

    Each function takes `x`, a floating-point tensor of shape (n,), read as float32, and also
    returns the number of NaN or infinite elements; if there are any, its other results are
    meaningless. `LONGEST` is the largest stretch of `add_quantiles`.
    """

    LONGEST: ClassVar[int] = sys.maxsize

    def order_statistics(self, x: Tensor, ranks: Tensor) -> tuple[Tensor, int]:
        """The elements at some int64 ranks in ascending order, float32; -0 comes before 0."""
        return x.float().sort().values[ranks], _non_finite(x)

    def add_quantiles(
        self, x: Tensor, size: int, below: Tensor, fraction: Tensor, sums: Tensor
    ) -> int:
        """Add to `sums` the quantiles of each stretch of `size` elements, times `size`, in order.

        A quantile lies between the ranks `below` (int64) and ``below + 1`` of a stretch, `fraction`
        (float64) of the way. `size` divides the number of elements and is at most `LONGEST`.
        """
        rows = x.float().view(-1, size).sort(dim=1).values
        above = (below + 1).clamp(max=size - 1)
        for row in _between(rows[:, below].double(), rows[:, above].double(), fraction):
            sums += row * size
        return _non_finite(x)


def _non_finite(x: Tensor) -> int:
    return int((~x.float().isfinite()).sum())
