"""Errors of Adam updates, over parameters and over pairs of codes, by the engine of the device."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qmaps.algebra.pair import Pair, adam_update, zero_points
from qmaps.algebra.quantized import QuantizedTensor
from qmaps.algebra.quantizer import Quantizer
from qmaps.analyze._states import States, adam_pairs
from qmaps.cuda import updates as cuda
from qmaps.cuda.engine import Engine
from qmaps.engines import dispatch
from qmaps.engines.backends import cuda_engine
from qmaps.engines.native import metrics as native
from qmaps.errors import SpecError

LEVELS = {"median": 0.5, "p99": 0.99, "p999": 0.999}

Moment = Tensor | QuantizedTensor
"""A moment in 32 bits, or quantized."""


@dataclass(frozen=True)
class Exact:
    """Moments and exact update of one parameter.

    Attributes:
        v: the second moment, float32 and contiguous.
        eps: Adam's eps.
        update: ``m / (sqrt(v) + eps)``, float32, contiguous, of the shape of `v`.
    """

    v: Tensor
    eps: float
    update: Tensor

    @classmethod
    def of(cls, m: Tensor, v: Tensor, eps: float) -> Exact:
        """Compute the exact update of Adam's moments, once for all pairs of quantizers.

        Args:
            m: the first moment, float32 of any shape.
            v: the second moment, float32 of the same shape, at least 0.
            eps: Adam's eps.

        Returns:
            The second moment, `eps` and the update ``m / (sqrt(v) + eps)``.
        """
        return cls(v.contiguous(), eps, adam_update(m, v, eps).contiguous())


class UpdateErrors:
    """Collects the errors of all parameters under one pair of quantizers.

    It works on the engine of the first parameter; all engines give the same quantiles.
    """

    def __init__(self) -> None:
        self._chosen: Reference | OnePass | None = None

    def clear(self) -> None:
        """Forget all parameters, to begin anew with another pair on the same engine."""
        if self._chosen is not None:
            self._chosen.clear()

    def add(self, exact: Exact, first: Moment, second: Moment) -> None:
        """Add the errors of one parameter.

        Args:
            exact: the parameter's second moment, eps and update in 32 bits.
            first: its first moment under the pair: quantized, or in 32 bits.
            second: its second moment under the pair: quantized, or in 32 bits.
        """
        if self._chosen is None:
            self._chosen = _collector(exact.update)
        self._chosen.add(exact, first, second)

    def columns(self) -> dict[str, float]:
        """Return the statistics over all parameters added so far, at least one.

        Returns:
            ``{mean,median,p99,p999,max}_{abs,rel}_error`` and `zeroed_share`; see `update_error`.
        """
        assert self._chosen is not None
        return self._chosen.columns()


def _collector(update: Tensor) -> Reference | OnePass:
    if (engine := cuda_engine(update)) is not None:
        return Cuda(engine)
    return Native() if dispatch.runs_native(update) else Reference()


def bits_of(q: Quantizer | None, shape: tuple[int, ...]) -> float:
    """Bits per element of a tensor under a quantizer; 32 for None."""
    return 32.0 if q is None else 8 * q.nbytes(shape) / math.prod(shape)


def quantized(x: Tensor, q: Quantizer | None) -> tuple[Moment, int]:
    """Return `x` as a quantizer stores it, or `x` itself for None, and its bytes."""
    if q is None:
        return x, x.nbytes
    t = q.quantize(x)
    return t, t.nbytes


class Reference:
    """Errors of updates in plain PyTorch and numpy."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._absolute: list[NDArray[np.float32]] = []
        self._relative: list[NDArray[np.float32]] = []
        self._collapsed = 0

    def add(self, exact: Exact, first: Moment, second: Moment) -> None:
        m, v = _values(first), _values(second)
        absolute, relative = element_errors(exact.update, adam_update(m, v, exact.eps))
        self._absolute.append(absolute)
        self._relative.append(relative)
        self._collapsed += int(zero_points(m, v, exact.v).sum())

    def columns(self) -> dict[str, float]:
        absolute, relative = np.concatenate(self._absolute), np.concatenate(self._relative)
        return {
            **_named("abs", _statistics(absolute)),
            **_named("rel", _statistics(relative)),
            "zeroed_share": self._collapsed / absolute.size,
        }


class OnePass:
    """Errors of updates on an engine with one pass over each parameter, decoding as it goes."""

    def __init__(
        self,
        errors: native.UpdateErrors | cuda.UpdateErrors,
        device: torch.device,
        supports: Callable[[QuantizedTensor], bool],
    ) -> None:
        self._errors = errors
        self._device = device
        self._supports = supports

    def clear(self) -> None:
        self._errors.clear()

    def add(self, exact: Exact, first: Moment, second: Moment) -> None:
        update, v = exact.update.to(self._device), exact.v.to(self._device)
        self._errors.add(update, v, self._readable(first), self._readable(second), exact.eps)

    def columns(self) -> dict[str, float]:
        numel, collapsed, *sides = self._errors.summary(list(LEVELS.values()))
        columns: dict[str, float] = {}
        for kind, (count, total, ranks) in zip(("abs", "rel"), sides, strict=True):
            mean = total / count if count else np.nan
            values = [mean, *(ranks or [np.nan] * (len(LEVELS) + 1))]
            columns |= _named(kind, values)
        return columns | {"zeroed_share": collapsed / numel}

    def _readable(self, moment: Moment) -> Moment:
        """The moment on the engine's device, decoded if the engine cannot read its codes."""
        moment = moment.to(self._device)
        if isinstance(moment, QuantizedTensor) and self._supports(moment):
            return moment
        return _values(moment).contiguous()


class Native(OnePass):
    """Errors of updates on the native engine."""

    def __init__(self) -> None:
        super().__init__(native.UpdateErrors(), torch.device("cpu"), native.supports_tensor)


class Cuda(OnePass):
    """Errors of updates on the CUDA engine."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(cuda.UpdateErrors(engine), engine.device, cuda.supports_tensor)


def element_errors(
    exact: Tensor, approximate: Tensor
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Absolute error of every element, and relative error where the exact value is not 0."""
    exact = exact.reshape(-1).double()
    error = (exact - approximate.reshape(-1).double()).abs()
    nonzero = exact != 0
    relative = error[nonzero] / exact[nonzero].abs()
    return error.float().cpu().numpy(), relative.float().cpu().numpy()


def _statistics(values: NDArray[np.float32]) -> list[float]:
    """Mean, nearest-rank quantiles at `LEVELS`, maximum; NaN of nothing."""
    if values.size == 0:
        return [np.nan] * (len(LEVELS) + 2)
    ranks = [int(np.ceil(q * values.size)) - 1 for q in LEVELS.values()] + [values.size - 1]
    ordered = np.partition(values, sorted(set(ranks)))
    return [float(values.mean(dtype=np.float64)), *(float(ordered[rank]) for rank in ranks)]


def _named(kind: str, values: list[float]) -> dict[str, float]:
    names = ("mean", *LEVELS, "max")
    return {f"{name}_{kind}_error": value for name, value in zip(names, values, strict=True)}


def _values(moment: Moment) -> Tensor:
    return moment if isinstance(moment, Tensor) else moment.dequantize()


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
        The sums over all large enough parameters with both moments.

    Raises:
        SpecError: `pair` leaves a moment in 32 bits.
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
    if engine is not None and cuda.supports_tensor(tm) and cuda.supports_tensor(tv):
        cuda.add_update_grid(engine, exact.update, tm, tv, exact.eps, list(sums))
        return
    if dispatch.runs_native(sums) and native.supports_tensor(tm) and native.supports_tensor(tv):
        native.add_update_grid(exact.update, tm, tv, exact.eps, list(sums))
        return
    w = adam_update(tm.dequantize(), tv.dequantize(), exact.eps)
    _count(sums, exact, w, tm.codes().long() * sums.shape[2] + tv.codes().long())


def _add_exact(sums: Tensor, exact: Exact, tm: QuantizedTensor, v: Tensor) -> None:
    """The same with a second moment in 32 bits, which has one column."""
    _count(sums, exact, adam_update(tm.dequantize(), v, exact.eps), tm.codes().long())


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
