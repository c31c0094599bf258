"""Quantiles of a tensor of any size."""

from __future__ import annotations

import torch
from torch import Tensor

from qmaps.errors import BadTypeError, BadValueError, NonFiniteError


def exact(x: Tensor, num: int = 256, offset: float | None = None) -> Tensor:
    """Exact quantiles of all elements of `x`, by sorting.

    Level i is ``offset + i * (1 - 2 * offset) / (num - 1)``; with the default offset this is
    ``(i + 1/2) / num``. Between two order statistics the value is interpolated linearly, as
    ``torch.quantile`` does (which refuses more than 16 million elements).

    Args:
        x: floating-point tensor of any shape, not empty, finite.
        num: number of quantiles, at least 2.
        offset: probability trimmed from both ends, in [0, 0.5); default ``1 / (2 * num)``.

    Returns:
        `num` ascending float32 values on the device of `x`.

    Raises:
        BadValueError: `x` is empty or not finite, or `num` or `offset` is out of range.

    >>> exact(torch.arange(9.0), num=3, offset=0.0)
    tensor([0., 4., 8.])
    """
    flat = _flat(x)
    return _order_statistics(flat.sort().values, _levels(num, offset, x.device)).float()


def sram(x: Tensor, num: int = 256, chunk: int = 4096, offset: float | None = None) -> Tensor:
    """Quantiles estimated chunk by chunk, by SRAM-Quantiles.

    Each chunk of `chunk` elements is sorted on its own (it fits the fast memory of a GPU) and
    its quantiles are averaged over the chunks in their order, in float64, a ragged last chunk
    weighted by its size.

    Args:
        x: floating-point tensor of any shape, not empty, finite.
        num: number of quantiles, at least 2.
        chunk: elements sorted at a time, at least 1.
        offset: probability trimmed from both ends, in [0, 0.5); default ``1 / (2 * num)``.

    Returns:
        `num` ascending float32 values on the device of `x`.

    Raises:
        BadValueError: `x` is empty or not finite, or an argument is out of range.

    Source: 8-bit optimizers, appendix F.
    """
    if chunk < 1:
        raise BadValueError(f"chunk={chunk} must be at least 1")
    flat = _flat(x)
    levels = _levels(num, offset, x.device)
    whole = flat.numel() // chunk
    total = torch.zeros(num, dtype=torch.float64, device=x.device)
    if whole:
        rows = flat[: whole * chunk].view(whole, chunk).sort(dim=1).values
        for row in _order_statistics(rows, levels):
            total += row * chunk
    ragged = flat[whole * chunk :]
    if ragged.numel():
        total += _order_statistics(ragged.sort().values, levels) * ragged.numel()
    return (total / flat.numel()).float()


def _flat(x: Tensor) -> Tensor:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise BadTypeError(f"x is {kind}; a floating-point tensor is needed")
    flat = x.detach().reshape(-1).float()
    if flat.numel() == 0:
        raise BadValueError(f"x of shape {tuple(x.shape)} is empty; quantiles need an element")
    bad = int((~flat.isfinite()).sum())
    if bad:
        raise NonFiniteError(f"x holds {bad} NaN or infinite elements; quantiles need finite ones")
    return flat


def _levels(num: int, offset: float | None, device: torch.device) -> Tensor:
    if num < 2:
        raise BadValueError(f"num={num} must be at least 2")
    if offset is None:
        offset = 1 / (2 * num)
    if not 0 <= offset < 0.5:
        raise BadValueError(f"offset={offset} is outside [0, 0.5)")
    i = torch.arange(num, dtype=torch.float64, device=device)
    return offset + i * ((1 - 2 * offset) / (num - 1))


def _order_statistics(ascending: Tensor, levels: Tensor) -> Tensor:
    """The quantiles of each row of `ascending` (last dimension), in float64."""
    last = ascending.shape[-1] - 1
    position = (levels * last).clamp(0, last)
    below = position.floor()
    fraction = position - below
    low = ascending[..., below.long()].double()
    high = ascending[..., (below.long() + 1).clamp(max=last)].double()
    return low + (high - low) * fraction
