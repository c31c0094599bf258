"""Sums of update errors over pairs of codes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qmaps import dispatch
from qmaps.analyze._states import States, adam_pairs
from qmaps.analyze._updates import Exact
from qmaps.errors import SpecError
from qmaps.native import metrics as native
from qmaps.pair import Pair, adam_update
from qmaps.quantizer import QuantizedTensor


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
        _add(grid, Exact.of(m, v, eps), tm, tv)
        grid.first += first.double() * m.numel()
        grid.second += second.double() * m.numel()
        numel += m.numel()
    assert grid is not None  # adam_pairs yields or raises
    grid.first /= numel
    grid.second /= numel
    return grid


def _add(grid: Grid, exact: Exact, tm: QuantizedTensor, tv: QuantizedTensor) -> None:
    """Add one parameter's sums."""
    sums = (grid.count, grid.absolute, grid.relative, grid.nonzero)
    if dispatch.runs_native() and native.follows_tensor(tm) and native.follows_tensor(tv):
        native.add_update_grid(exact.update, tm, tv, exact.eps, sums)
        return
    u = exact.update.reshape(-1).double()
    w = adam_update(tm.dequantize(), tv.dequantize(), exact.eps).reshape(-1).double()
    error = (u - w).abs()
    kept = u != 0
    fraction = torch.where(kept, error / u.abs(), 0.0)
    shape = tuple(grid.count.shape)
    cell = (tm.codes().long() * shape[1] + tv.codes().long()).reshape(-1)
    for target, weight in zip(sums, (None, error, fraction, kept.double()), strict=True):
        target += torch.bincount(cell, weight, minlength=shape[0] * shape[1]).view(shape)
