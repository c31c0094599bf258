"""Sums of update errors over pairs of codes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from qmaps.algebra.pair import Pair, adam_update
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.analyze._states import States, adam_pairs
from qmaps.analyze._updates import Exact
from qmaps.cuda import updates as cuda
from qmaps.engines.native import metrics as native
from qmaps.engines.support import CUDA, NATIVE
from qmaps.errors import SpecError
from qmaps.ops import dispatch
from qmaps.ops.backends import cuda_engine


@dataclass
class Grid:
    """Sums over all elements of all parameters for each pair (first code, second code).

    All tensors are float64 and on the CPU. The sums have the shape (codes of the first map, codes
    of the second map).

    Attributes:
        count: number of elements.
        absolute: sum of |u - u_quantized|.
        relative: sum of |u - u_quantized| / |u| over elements with u != 0.
        nonzero: number of elements with u != 0.
        first, second: the codebooks, 1-D. Each entry is the mean over parameters, weighted by
            their sizes; the parameters differ only where the map is fitted to data.
    """

    count: Tensor
    absolute: Tensor
    relative: Tensor
    nonzero: Tensor
    first: Tensor
    second: Tensor


def accumulate(
    states: States, pair: Pair, min_quantized_size: int, *, exact_second: bool = False
) -> Grid:
    """Compute the sums of one pair of quantizers, one parameter at a time.

    Args:
        states: captured states, their path, or tensors by parameter and state name.
        pair: quantizers of both moments; neither may be None.
        min_quantized_size: parameters of at most this many elements are left out.
        exact_second: whether the second moment may stay in 32 bits; it then counts as one code,
            of the value NaN.

    Returns:
        The sums over all parameters that have both moments and are large enough.

    Raises:
        SpecError: `pair` leaves a moment in 32 bits that must be quantized.
        CaptureError: no parameter is large enough or has both moments, or a moment holds NaN or
            infinity.
    """
    if pair.first is None or (pair.second is None and not exact_second):
        which = "the first moment" if exact_second else "a moment"
        must = "it" if exact_second else "both moments"
        raise SpecError(
            f"pair={pair.spec!r} leaves {which} in 32 bits; {must} must be quantized here"
        )
    sums = None
    numel = 0
    for _, m, v, eps in adam_pairs(states, min_quantized_size):
        tm, tv = pair.first.quantize(m), pair.second.quantize(v) if pair.second else None
        first = tm.quantizer.map.codebook().double()
        second = first.new_full((1,), torch.nan)
        if tv is not None:
            second = tv.quantizer.map.codebook().double()
        if sums is None:
            shape = (4, first.numel(), second.numel())
            sums = torch.zeros(shape, dtype=torch.float64, device=m.device)
            codebooks = torch.zeros_like(first), torch.zeros_like(second)
        if tv is None:
            _add_exact(sums, Exact.of(m, v, eps), tm, v)
        else:
            _add(sums, Exact.of(m, v, eps), tm, tv)
        for total, codebook in zip(codebooks, (first, second), strict=True):
            total += codebook * m.numel()
        numel += m.numel()
    assert sums is not None  # adam_pairs yields or raises
    return Grid(*sums.cpu(), *(total / numel for total in codebooks))


def _add(sums: Tensor, exact: Exact, tm: QuantizedTensor, tv: QuantizedTensor) -> None:
    """Add one parameter's sums to those of `Grid`, of shape (4, first, second) in their order."""
    engine = cuda_engine(sums, exact.update, tm.packed, tv.packed)
    if engine is not None and CUDA.decodes(tm) and CUDA.decodes(tv):
        cuda.add_update_grid(engine, exact.update, tm, tv, exact.eps, list(sums))
        return
    if dispatch.runs_native(sums) and NATIVE.decodes(tm) and NATIVE.decodes(tv):
        native.add_update_grid(exact.update, tm, tv, exact.eps, list(sums))
        return
    w = adam_update(tm.dequantize(), tv.dequantize(), exact.eps)
    _count(sums, exact, w, tm.codes().long() * sums.shape[2] + tv.codes().long())


def _add_exact(sums: Tensor, exact: Exact, tm: QuantizedTensor, v: Tensor) -> None:
    """The same with a second moment that stays as it is, which has one column."""
    _count(sums, exact, adam_update(tm.dequantize(), v, exact.eps), tm.codes().long())


def _count(sums: Tensor, exact: Exact, update: Tensor, cells: Tensor) -> None:
    """Add the errors of `update` to the cells that its elements belong to."""
    u, w, cell = exact.update.reshape(-1).double(), update.reshape(-1).double(), cells.reshape(-1)
    error = (u - w).abs()
    nonzero = u != 0
    fraction = torch.where(nonzero, error / u.abs(), 0.0)
    _, rows, columns = sums.shape
    for target, weight in zip(sums, (None, error, fraction, nonzero.double()), strict=True):
        binned = torch.bincount(cell, weight, minlength=rows * columns)
        target += binned.view(rows, columns).to(sums.device)
