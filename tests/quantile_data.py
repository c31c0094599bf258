"""Data for quantiles, and the reference for every engine."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from qmaps import quantiles
from qmaps.ops.backends import use_backend

METHODS = (quantiles.exact, quantiles.sram)


def bits(x: Tensor) -> list[int]:
    return x.view(torch.int32).tolist()


def assert_as_reference(
    x: Tensor, num: int = 256, offset: float | None = None, methods: tuple[Callable, ...] = METHODS
) -> None:
    for method in methods:
        with use_backend("reference"):
            expected = method(x, num, offset=offset)
        assert bits(method(x, num, offset=offset)) == bits(expected), method.__name__


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def normal(n: int) -> Tensor:
    return torch.randn(n, generator=generator())


def pick(values: list[float] | Tensor, n: int) -> Tensor:
    """`n` of these values at random."""
    values = torch.as_tensor(values, dtype=torch.float32)
    return values[torch.randint(values.numel(), (n,), generator=generator())]


def any_bits(n: int) -> Tensor:
    words = torch.randint(-(2**31), 2**31, (2 * n,), generator=generator())
    x = words.to(torch.int32).view(torch.float32)
    return x[x.isfinite()][:n]
