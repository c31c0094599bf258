"""Quantiles of a tensor of any size.

Level i is ``offset + i * (1 - 2 * offset) / (num - 1)``; with the default offset this is
``(i + 1/2) / num``. A level p lies at the position ``p * (n - 1)`` among n elements in ascending
order, and between two of them the value is interpolated linearly in float64, as by
``torch.quantile`` (limited to 16 million elements).

Tensors on the CPU are read by the native engine where it is built. It returns the same bits, does
not sort more than it must, and needs at most a quarter of the tensor's elements as memory, beside a
few MiB. The CUDA engine returns them too for `sram`, with chunks of at most 4096 elements.
"""

from __future__ import annotations

import sys
from typing import Any, ClassVar

import torch
from torch import Tensor

from qmaps.algebra.dense import unsupported_reason
from qmaps.cuda import quantiles as cuda
from qmaps.engines.addresses import in_memory, plain
from qmaps.engines.native import quantiles as native
from qmaps.errors import BadTypeError, BadValueError, NonFiniteError, check_int, shown
from qmaps.ops.backends import cuda_engine, native_runs

__all__ = ["exact", "sram"]

MOST = 2**24
"""Quantiles asked for at a time, at most."""

Count = int | Tensor
"""A number, or an integer tensor without dimensions, on a device that may still be at work."""


def exact(x: Tensor, num: int = 256, offset: float | None = None) -> Tensor:
    """Exact quantiles of all elements of `x`.

    Args:
        x: floating-point tensor of any shape, not empty, finite; read as float32.
        num: number of quantiles, at least 2.
        offset: probability trimmed from both ends, in [0, 0.5); default ``1 / (2 * num)``.

    Returns:
        `num` ascending float32 values on the device of `x`.

    Raises:
        BadTypeError: `x` is not a floating-point tensor.
        BadValueError: `x` is empty or not finite, or `num` or `offset` is out of range.

    >>> exact(torch.arange(9.0), num=3, offset=0.0)
    tensor([0., 4., 8.])
    """
    flat, levels = _checked(x, num, offset)
    below, above, fraction = _positions(levels, flat.numel())
    statistics, bad = _executor(flat).order_statistics(flat, torch.cat([below, above]))
    _refuse(bad)
    values = statistics.double()
    return _between(values[:num], values[num:], fraction).float()


def sram(x: Tensor, num: int = 256, chunk: int = 4096, offset: float | None = None) -> Tensor:
    """Quantiles estimated chunk by chunk, by SRAM-Quantiles.

    Each chunk of `chunk` elements is sorted on its own (it fits the fast memory of a GPU) and
    its quantiles are averaged over the chunks in their order, in float64, a ragged last chunk
    weighted by its size.

    Args:
        x: floating-point tensor of any shape, not empty, finite; read as float32.
        num: number of quantiles, at least 2.
        chunk: elements sorted at a time, at least 1.
        offset: probability trimmed from both ends, in [0, 0.5); default ``1 / (2 * num)``.

    Returns:
        `num` ascending float32 values on the device of `x`.

    Raises:
        BadTypeError: `x` is not a floating-point tensor.
        BadValueError: `x` is empty or not finite, or an argument is out of range.

    Source: 8-bit optimizers, appendix F.
    """
    _check_int("chunk", chunk, 1)
    flat, levels = _checked(x, num, offset)
    end = flat.numel() // chunk * chunk
    sums = torch.zeros(num, dtype=torch.float64, device=x.device)
    bad: Count = 0
    for part, size in ((flat[:end], chunk), (flat[end:], flat.numel() - end)):
        if part.numel():
            bad = bad + _add_quantiles(part, size, levels, sums)
    _refuse(bad)
    # Dividing by a Python number on CUDA would multiply by its reciprocal.
    return (sums / torch.full_like(sums, flat.numel())).float()


def _checked(x: Tensor, num: int, offset: float | None) -> tuple[Tensor, Tensor]:
    """The elements in one dimension, and the levels in float64."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise BadTypeError(f"x must be a floating-point tensor, got {kind}")
    if why := unsupported_reason(x):
        raise BadTypeError(f"x {why}; expected a dense tensor with values")
    if x.numel() == 0:
        raise BadValueError(
            f"x of shape {tuple(x.shape)} is empty; quantiles need at least one element"
        )
    _check_int("num", num, 2)
    if num > MOST:
        raise BadValueError(f"num={shown(num)} must be at most {MOST}")
    if offset is None:
        offset = 1 / (2 * num)
    if isinstance(offset, bool) or not isinstance(offset, (int, float)):
        raise BadTypeError(f"offset={shown(offset)} must be a number or None")
    if not 0 <= offset < 0.5:
        raise BadValueError(f"offset={shown(offset)} must be at least 0 and below 0.5")
    i = torch.arange(num, dtype=torch.float64, device=x.device)
    return plain(x.detach(), "x").reshape(-1), offset + i * ((1 - 2 * offset) / (num - 1))


def _check_int(name: str, value: int, minimum: int) -> None:
    check_int(name, value)
    if value < minimum:
        raise BadValueError(f"{name}={shown(value)} must be at least {minimum}")


def _refuse(bad: Count) -> None:
    if count := int(bad):
        raise NonFiniteError(
            f"x holds {count} NaN or infinite elements; all elements must be finite"
        )


def _positions(levels: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the ranks on both sides of each level, and the fraction between them."""
    position = (levels * (count - 1)).clamp(0, count - 1)
    below = position.floor()
    above = (below.long() + 1).clamp(max=count - 1)
    return below.long(), above, position - below


def _between(low: Tensor, high: Tensor, fraction: Tensor) -> Tensor:
    return low + (high - low) * fraction


def _add_quantiles(part: Tensor, size: int, levels: Tensor, sums: Tensor) -> Count:
    below, above, fraction = _positions(levels, size)
    if size <= cuda.LONGEST and (device := cuda_engine(part)) is not None:
        return cuda.add_quantiles(device, part, size, below, fraction, sums)
    executor = _executor(part)
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


def _executor(flat: Tensor) -> Any:
    if flat.device.type == "cpu" and native_runs() and in_memory(flat):
        return native
    return Executor()


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
