"""Sums of update errors over pairs of codes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qmaps.algebra.pair import Pair, adam_update
from qmaps.algebra.quantized import QuantizedTensor
from qmaps.analyze._states import States, adam_pairs
from qmaps.analyze._updates import Exact
from qmaps.cuda import updates as cuda
from qmaps.engines import dispatch
from qmaps.engines.backends import cuda_engine
from qmaps.engines.native import metrics as native
from qmaps.errors import SpecError


@dataclass
class Grid:
    """Per (first code, second code): float64 sums over all elements of all parameters, on the CPU.

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
    sums = None
    numel = 0
    for _, m, v, eps in adam_pairs(states, min_quantized_size):
        tm, tv = pair.first.quantize(m), pair.second.quantize(v)
        first, second = (t.quantizer.map.codebook().double() for t in (tm, tv))
        if sums is None:
            shape = (4, first.numel(), second.numel())
            sums = torch.zeros(shape, dtype=torch.float64, device=m.device)
            codebooks = torch.zeros_like(first), torch.zeros_like(second)
        _add(sums, Exact.of(m, v, eps), tm, tv)
        for total, codebook in zip(codebooks, (first, second), strict=True):
            total += codebook * m.numel()
        numel += m.numel()
    assert sums is not None  # adam_pairs yields or raises
    return Grid(*sums.cpu(), *(total / numel for total in codebooks))


def _add(sums: Tensor, exact: Exact, tm: QuantizedTensor, tv: QuantizedTensor) -> None:
    """Add one parameter's sums to those of `Grid`, of shape (4, first, second) in their order."""
    engine = cuda_engine(sums, exact.update, tm.packed, tv.packed)
    if engine is not None and cuda.follows_tensor(tm) and cuda.follows_tensor(tv):
        cuda.add_update_grid(engine, exact.update, tm, tv, exact.eps, list(sums))
        return
    if dispatch.runs_native(sums) and native.follows_tensor(tm) and native.follows_tensor(tv):
        native.add_update_grid(exact.update, tm, tv, exact.eps, list(sums))
        return
    u = exact.update.reshape(-1).double()
    w = adam_update(tm.dequantize(), tv.dequantize(), exact.eps).reshape(-1).double()
    error = (u - w).abs()
    kept = u != 0
    fraction = torch.where(kept, error / u.abs(), 0.0)
    _, rows, columns = sums.shape
    cell = (tm.codes().long() * columns + tv.codes().long()).reshape(-1)
    for target, weight in zip(sums, (None, error, fraction, kept.double()), strict=True):
        found = torch.bincount(cell, weight, minlength=rows * columns)
        target += found.view(rows, columns).to(sums.device)
