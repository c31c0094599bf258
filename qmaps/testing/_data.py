"""Values for checks, and exact answers."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import isfunction
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from qmaps.maps.base import Map, limits, table, thresholds

LARGEST = torch.finfo(torch.float32).max
SMALLEST = 2.0**-149


def checks_in(module: Mapping[str, Any]) -> tuple[Any, ...]:
    """The functions without a leading ``_`` that a module has defined so far, in their order."""
    return tuple(
        member
        for name, member in module.items()
        if isfunction(member) and member.__module__ == module["__name__"] and name[0] != "_"
    )


@contextmanager
def about(subject: object) -> Iterator[None]:
    """Name the subject of a failure."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"about: {subject}")
        raise


def sample(shape: tuple[int, ...], signed: bool, seed: int = 0) -> Tensor:
    """Values of many magnitudes, as moments have."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float32) * torch.exp2(
        4 * torch.randn(shape, generator=generator, dtype=torch.float32)
    )
    return x if signed else x.square()


def inside(codebook: Tensor, count: int, seed: int = 0) -> Tensor:
    """Values between the ends of the codebook, as many in each gap, whatever its width."""
    g = torch.Generator().manual_seed(seed)
    gap = torch.randint(0, codebook.numel() - 1, (count,), generator=g)
    low, high = codebook[gap], codebook[gap + 1]
    share = torch.rand(count, generator=g, dtype=torch.float32)
    n = low.double() + share * (high.double() - low.double())
    return n.float().clamp(codebook[0], codebook[-1])


def outside(codebook: Tensor) -> Tensor:
    """Two values below the codebook and two above."""
    low, high = float(codebook[0]), float(codebook[-1])
    values = [low - 1 - abs(low), -LARGEST, high + 1 + abs(high), LARGEST]
    return torch.tensor(values, dtype=torch.float32)


def upper_is_nearer(n: float, low: float, high: float) -> bool:
    """Return True if n is strictly nearer to `high`, decided in exact arithmetic."""
    return math.fsum((n, n, -low, -high)) > 0  # fsum rounds once, so its sign is exact


def exact_codes(n: Tensor, codebook: Tensor) -> list[int]:
    """The nearest code of each value in exact arithmetic, ties to the lower one."""
    gaps = list(pairwise(codebook.tolist()))
    return [
        bisect.bisect_left(gaps, True, key=lambda gap: not upper_is_nearer(value, *gap))
        for value in n.reshape(-1).tolist()
    ]


def rounds_to_nearest(map_: Map) -> bool:
    """Return True if the thresholds of a map are those of rounding to the nearest value."""
    return torch.equal(limits(map_), thresholds(table(map_)))


def codes_of(n: Tensor, map_: Map) -> list[int]:
    """The code of each value: the nearest, or by the map's own thresholds."""
    if rounds_to_nearest(map_):
        book = map_.codebook().tolist()
        # Of equal values the lowest code is taken.
        return [bisect.bisect_left(book, book[code]) for code in exact_codes(n, map_.codebook())]
    between = limits(map_).tolist()
    return [bisect.bisect_left(between, value) for value in n.reshape(-1).tolist()]


@contextmanager
def refused(error: type[Exception], message: str) -> Iterator[None]:
    """Expect this error with this message."""
    try:
        yield
    except error as caught:
        assert str(caught) == message, f"{caught} is not {message}"
        return
    raise AssertionError(f"{error.__name__} was not raised: {message}")
