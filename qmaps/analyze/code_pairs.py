"""Use and error of the Adam update per pair of codes, and per code of the first moment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from qmaps.algebra.pair import Pair, adam_update, distinct
from qmaps.analyze.states import MIN_SIZE, States, adam_pairs, joined
from qmaps.analyze.update_error import Exact
from qmaps.engines.native import metrics as native
from qmaps.engines.support import NATIVE
from qmaps.errors import SpecError
from qmaps.ops import dispatch


def code_pairs(
    states: States, pairs: Iterable[Pair | str], *, min_quantized_size: int = MIN_SIZE
) -> pd.DataFrame:
    """Use of each (first, second) pair of codes, and the error of its update.

    Args:
        states: captured states, their path, or tensors by parameter and state name.
        pairs: quantizers of both moments, such as ``"B2048/DE@8s + B2048/DE@8u"``; at least one.
        min_quantized_size: parameters of at most this many elements are left out.

    Returns:
        One row per pair of quantizers and pair of codes in use: `quantizer`,
        `code_first`, `code_second`, `value_first`, `value_second` (codebook values),
        `size_first`, `size_second` (codebook sizes), `count` (elements), `use` (share of all
        elements, 0 to 1), `mean_abs_error` (of u = m / (sqrt(v) + eps)), `mean_rel_error`
        (fraction of |u|, over elements with u != 0; NaN where there are none).

    Raises:
        SpecError: a pair does not parse, or leaves a moment in 32 bits.
        CaptureError: no parameter is large enough or has both moments, or a moment holds NaN or
            infinity.

    Source: 8-bit optimizers, figure 4.
    """
    tables = []
    for pair in distinct(map(Pair.parse, pairs)):
        grid = _accumulate(states, pair, min_quantized_size)
        first, second = (index.numpy() for index in grid.sums[0].nonzero(as_tuple=True))
        columns = {
            "quantizer": pair.spec,
            "code_first": first,
            "code_second": second,
            "value_first": grid.first.numpy()[first],
            "value_second": grid.second.numpy()[second],
            "size_first": grid.first.numel(),
            "size_second": grid.second.numel(),
        }
        sums = (part.numpy()[first, second] for part in grid.sums)
        tables.append({**columns, **_means(*sums)})
    return joined(tables)


def first_code_error(
    states: States, pairs: Iterable[Pair | str], *, min_quantized_size: int = MIN_SIZE
) -> pd.DataFrame:
    """The update's mean errors for each code of the first moment.

    Args:
        states: captured states, their path, or tensors by parameter and state name.
        pairs: quantizers of both moments, such as ``"B2048/DE@8s + B2048/DE@8u"``; at least one.
            With ``"... + 32-bit"`` the second moment stays exact, and all errors are the first's.
        min_quantized_size: parameters of at most this many elements are left out.

    Returns:
        One row per pair of quantizers and code: `quantizer`, `code`, `value` (codebook value),
        `position` (code scaled to [-1, 1]), `count` (elements), `use` (share of all elements,
        0 to 1), `mean_abs_error` (of u = m / (sqrt(v) + eps)), `mean_rel_error` (fraction of
        |u|, over elements with u != 0). Errors of unused codes are NaN.

    Raises:
        SpecError: a pair does not parse, or leaves the first moment in 32 bits.
        CaptureError: no parameter is large enough or has both moments, or a moment holds NaN or
            infinity.

    Source: 8-bit optimizers, figure 5.
    """
    tables = []
    for pair in distinct(map(Pair.parse, pairs)):
        grid = _accumulate(states, pair, min_quantized_size, exact_second=True)
        size = grid.first.numel()
        columns = {
            "quantizer": pair.spec,
            "code": np.arange(size),
            "value": grid.first.numpy(),
            "position": np.linspace(-1, 1, size),
        }
        tables.append({**columns, **_means(*(s.sum(1).numpy() for s in grid.sums))})
    return joined(tables)


def _means(
    count: NDArray[np.float64],
    absolute: NDArray[np.float64],
    relative: NDArray[np.float64],
    nonzero: NDArray[np.float64],
) -> dict[str, NDArray[Any]]:
    """The last columns of both frames, from the sums of `_Grid`."""
    with np.errstate(invalid="ignore"):
        return {
            "count": count.astype(np.int64),
            "use": count / count.sum(),
            "mean_abs_error": absolute / count,
            "mean_rel_error": relative / nonzero,
        }


class _Grid(NamedTuple):
    """Sums over all elements for each pair (first code, second code), on the CPU.

    Attributes:
        sums: float64 of shape (4, first codes, second codes): number of elements, sums of
            |u - u_quantized| and of that over |u| where u != 0, and number of elements with u != 0.
        first, second: the codebooks, 1-D. Each entry is the mean over parameters, weighted by
            their sizes; the parameters differ only where the map is fitted to data.
    """

    sums: Tensor
    first: Tensor
    second: Tensor


def _accumulate(
    states: States, pair: Pair, min_quantized_size: int, *, exact_second: bool = False
) -> _Grid:
    """Compute the sums of one pair of quantizers, one parameter at a time.

    With `exact_second` the second moment may stay in 32 bits; it then counts as one code, of the
    value NaN.
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
        exact = Exact.of(m, v, eps)
        if tv is None:  # the second moment has one column
            _count(sums, exact, adam_update(tm.dequantize(), v, eps), tm.codes().long())
        elif dispatch.runs_native(sums) and NATIVE.decodes(tm) and NATIVE.decodes(tv):
            native.add_update_grid(exact.update, tm, tv, eps, list(sums))
        else:
            w = adam_update(tm.dequantize(), tv.dequantize(), eps)
            _count(sums, exact, w, tm.codes().long() * second.numel() + tv.codes().long())
        for total, codebook in zip(codebooks, (first, second), strict=True):
            total += codebook * m.numel()
        numel += m.numel()
    assert sums is not None  # adam_pairs yields or raises
    return _Grid(sums.cpu(), *(total / numel for total in codebooks))


def _count(sums: Tensor, exact: Exact, update: Tensor, cells: Tensor) -> None:
    """Add the errors of `update` to the cells of its elements."""
    u, w, cell = exact.update.reshape(-1).double(), update.reshape(-1).double(), cells.reshape(-1)
    error = (u - w).abs()
    nonzero = u != 0
    fraction = torch.where(nonzero, error / u.abs(), 0.0)
    _, rows, columns = sums.shape
    for target, weight in zip(sums, (None, error, fraction, nonzero.double()), strict=True):
        binned = torch.bincount(cell, weight, minlength=rows * columns)
        target += binned.view(rows, columns).to(sums.device)
