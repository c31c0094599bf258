"""Errors of the Adam update under pairs of quantizers, by the engine of the device."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from qmaps.algebra.pair import Pair, adam_update, distinct, zero_points
from qmaps.algebra.quantizer import QuantizedTensor, Quantizer, values_of
from qmaps.analyze.states import MIN_SIZE, States, adam_pairs
from qmaps.engines.native import metrics as native
from qmaps.engines.support import NATIVE
from qmaps.ops import dispatch
from qmaps.optim.presets import PAIRS, pair_of

LEVELS = {"median": 0.5, "p99": 0.99, "p999": 0.999}

Moment = Tensor | QuantizedTensor
"""A moment in 32 bits, or quantized."""


def update_error(
    states: States, pairs: Iterable[Pair | str], *, min_quantized_size: int = MIN_SIZE
) -> pd.DataFrame:
    """Errors of the Adam update over all parameters together, one row per pair.

    Args:
        states: captured states, their path, or tensors by parameter and state name.
        pairs: quantizers of both moments, such as ``"B2048/DE@8s + B2048/DE@8u"``, or names of
            presets.
        min_quantized_size: parameters of at most this many elements are left out.

    Returns:
        Columns `quantizer`, `preset` (its name, or empty), `numel` (elements of all parameters),
        `bits_per_element` (mean of the two moments),
        ``{mean,median,p99,p999,max}_{abs,rel}_error`` and `zeroed_share`. The last is the share of
        elements whose second moment is not 0 but decodes to 0, under a first moment that decodes
        to another value than 0.

    Raises:
        SpecError: a pair does not parse; nothing has been measured.
        CaptureError: no parameter is large enough or has both moments, or a moment holds NaN or
            infinity.

    The update is u = m / (sqrt(v) + eps). Relative errors are fractions ``|u - u_quantized| / |u|``
    over elements with u != 0. Updates near zero dominate their mean, so the median stands beside
    it. Quantiles are nearest ranks: the smallest error that at least that share of the elements
    does not exceed. The function holds 8 bytes per element in memory.

    Source: 8-bit optimizers, table 6 and appendix C.
    """
    parsed = distinct(pair_of(pair) for pair in pairs)
    errors: Reference | OnePass | None = None
    rows = []
    for pair in parsed:
        if errors is not None:
            errors.clear()
        nbytes, numel = 0, 0
        for _, m, v, eps in adam_pairs(states, min_quantized_size):
            first: Moment = m if pair.first is None else pair.first.quantize(m)
            second: Moment = v if pair.second is None else pair.second.quantize(v)
            exact = Exact.of(m, v, eps)
            errors = errors or collector(exact.update)
            errors.add(exact, first, second)
            nbytes += first.nbytes + second.nbytes
            numel += m.numel()
        assert errors is not None  # adam_pairs yields or raises
        bits = 4 * nbytes / numel
        named = {"quantizer": pair.spec, "preset": PAIRS.get(pair.spec, "")}
        columns = {**named, "numel": numel, "bits_per_element": bits}
        rows.append({**columns, **errors.columns()})
    return pd.DataFrame(rows)


def bits_of(q: Quantizer | Pair | None, shape: tuple[int, ...]) -> float:
    """Bits per element of a tensor under a quantizer, 32 for None; of a pair the mean of both."""
    if isinstance(q, Pair):
        return (bits_of(q.first, shape) + bits_of(q.second, shape)) / 2
    return 32.0 if q is None else 8 * q.nbytes(shape) / math.prod(shape)


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
        """The exact update of two moments, float32 of one shape, once for all pairs."""
        return cls(v.contiguous(), eps, adam_update(m, v, eps).contiguous())


def collector(update: Tensor) -> Reference | OnePass:
    """Make the collector of errors of an update; both give the same quantiles."""
    return OnePass() if dispatch.runs_native(update) else Reference()


class Reference:
    """Errors of the updates of all parameters under one pair, in plain PyTorch and numpy."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all parameters, to begin anew with another pair."""
        self._absolute: list[NDArray[np.float32]] = []
        self._relative: list[NDArray[np.float32]] = []
        self._collapsed = 0

    def add(self, exact: Exact, first: Moment, second: Moment) -> None:
        """Add the errors of one parameter, with its moments under the pair."""
        m, v = values_of(first), values_of(second)
        update = exact.update.reshape(-1).double()
        error = (update - adam_update(m, v, exact.eps).reshape(-1).double()).abs()
        nonzero = update != 0
        relative = error[nonzero] / update[nonzero].abs()
        self._absolute.append(error.float().cpu().numpy())
        self._relative.append(relative.float().cpu().numpy())
        self._collapsed += int(zero_points(m, v, exact.v).sum())

    def columns(self) -> dict[str, float]:
        """The statistics over all parameters added, at least one, as `update_error` has them."""
        absolute, relative = np.concatenate(self._absolute), np.concatenate(self._relative)
        return {
            **_named("abs", _statistics(absolute)),
            **_named("rel", _statistics(relative)),
            "zeroed_share": self._collapsed / absolute.size,
        }


class OnePass(native.UpdateErrors):
    """Errors of updates on the native engine, in one pass that decodes as it goes."""

    def add(self, exact: Exact, first: Moment, second: Moment) -> None:
        """As `Reference.add`."""
        update, v = exact.update.cpu(), exact.v.cpu()
        self.add_moments(update, v, self._readable(first), self._readable(second), exact.eps)

    def columns(self) -> dict[str, float]:
        """As `Reference.columns`."""
        numel, collapsed, *sides = self.summary(list(LEVELS.values()))
        columns: dict[str, float] = {}
        for kind, (count, total, ranks) in zip(("abs", "rel"), sides, strict=True):
            mean = total / count if count else np.nan
            values = [mean, *(ranks or [np.nan] * (len(LEVELS) + 1))]
            columns |= _named(kind, values)
        return columns | {"zeroed_share": collapsed / numel}

    def _readable(self, moment: Moment) -> Moment:
        """The moment on the CPU, decoded if the engine cannot read its codes."""
        moment = moment.to("cpu")
        if isinstance(moment, QuantizedTensor) and NATIVE.decodes(moment):
            return moment
        return values_of(moment).contiguous()


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
