"""Sums of update errors over pairs of codes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qmaps.analyze._states import States, adam_pairs
from qmaps.errors import SpecError
from qmaps.pair import Pair, adam_update


@dataclass
class Grid:
    """Per (first code, second code): float64 sums over all elements of all parameters.

    Attributes:
        count: elements.
        absolute: sum of |u - u_quantized|.
        relative: sum of |u - u_quantized| / |u| over elements with u != 0.
        nonzero: how many elements that is.
        first, second: codebooks; of fitted maps the mean over parameters by size.
    """

    count: Tensor
    absolute: Tensor
    relative: Tensor
    nonzero: Tensor
    first: Tensor
    second: Tensor


def accumulate(states: States, pair: Pair, min_quantized_size: int) -> Grid:
    """The sums of one pair, one parameter at a time."""
    if pair.first is None or pair.second is None:
        raise SpecError(f"pair={pair.spec!r} leaves a moment in 32 bits; both need codes here")
    grid = None
    numel = 0
    for _, m, v, eps in adam_pairs(states, min_quantized_size):
        tm, tv = pair.first.quantize(m), pair.second.quantize(v)
        first, second = tm.quantizer.map.codebook(), tv.quantizer.map.codebook()
        shape = (first.numel(), second.numel())
        if grid is None:
            count, absolute, relative, nonzero = torch.zeros(4, *shape, dtype=torch.float64)
            codebooks = torch.zeros_like(first).double(), torch.zeros_like(second).double()
            grid = Grid(count, absolute, relative, nonzero, *codebooks)
        exact = adam_update(m, v, eps).reshape(-1).double()
        approximate = adam_update(tm.dequantize(), tv.dequantize(), eps).reshape(-1).double()
        error = (exact - approximate).abs()
        kept = exact != 0
        fraction = torch.where(kept, error / exact.abs(), 0.0)
        cell = (tm.codes().long() * shape[1] + tv.codes().long()).reshape(-1)
        for target, weight in (
            (grid.count, None),
            (grid.absolute, error),
            (grid.relative, fraction),
            (grid.nonzero, kept.double()),
        ):
            target += torch.bincount(cell, weight, minlength=shape[0] * shape[1]).view(shape)
        grid.first += first.double() * m.numel()
        grid.second += second.double() * m.numel()
        numel += m.numel()
    assert grid is not None  # adam_pairs yields or raises
    grid.first /= numel
    grid.second /= numel
    return grid
