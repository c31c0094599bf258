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

from typing import Any

from torch import Tensor

from qmaps.algebra.dense import unsupported_reason
from qmaps.cuda import quantiles as cuda
from qmaps.engines import order_statistics
from qmaps.engines.addresses import in_memory, plain
from qmaps.engines.native import quantiles as native
from qmaps.engines.order_statistics import CHUNK, Count, positions
from qmaps.errors import BadTypeError, BadValueError, NonFiniteError, check_int, shown
from qmaps.ops.backends import cuda_engine, native_runs

__all__ = ["exact", "sram"]

MOST = 2**24
"""Quantiles asked for at a time, at most."""


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

    >>> import torch
    >>> exact(torch.arange(9.0), num=3, offset=0.0)
    tensor([0., 4., 8.])
    """
    flat, levels = _checked(x, num, offset)
    return _finite(*order_statistics.exact(flat, levels, _executor(flat)))


def sram(x: Tensor, num: int = 256, chunk: int = CHUNK, offset: float | None = None) -> Tensor:
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
    return _finite(*order_statistics.sram(flat, levels, chunk, _add))


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
    if offset is not None:
        if isinstance(offset, bool) or not isinstance(offset, (int, float)):
            raise BadTypeError(f"offset={shown(offset)} must be a number or None")
        if not 0 <= offset < 0.5:
            raise BadValueError(f"offset={shown(offset)} must be at least 0 and below 0.5")
    return plain(x.detach(), "x").reshape(-1), order_statistics.levels_of(num, offset, x.device)


def _check_int(name: str, value: int, minimum: int) -> None:
    check_int(name, value)
    if value < minimum:
        raise BadValueError(f"{name}={shown(value)} must be at least {minimum}")


def _finite(values: Tensor, bad: Count) -> Tensor:
    """The values, unless there are elements that are not finite."""
    if count := int(bad):
        raise NonFiniteError(
            f"x holds {count} NaN or infinite elements; all elements must be finite"
        )
    return values


def _add(part: Tensor, size: int, levels: Tensor, sums: Tensor) -> Count:
    """See `order_statistics.add_quantiles`, on the engine in use."""
    if size <= cuda.LONGEST and (device := cuda_engine(part)) is not None:
        below, _, fraction = positions(levels, size)
        return cuda.add_quantiles(device, part, size, below, fraction, sums)
    return order_statistics.add_quantiles(part, size, levels, sums, _executor(part))


def _executor(flat: Tensor) -> Any:
    if flat.device.type == "cpu" and native_runs() and in_memory(flat):
        return native
    return order_statistics.Executor()
