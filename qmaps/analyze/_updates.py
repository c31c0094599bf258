"""Errors of Adam updates, collected over parameters by the engine that runs here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qmaps.algebra.pair import adam_update, zero_points
from qmaps.algebra.quantizer import QuantizedTensor, Quantizer
from qmaps.cuda import updates as cuda
from qmaps.cuda.engine import Engine
from qmaps.engines.native import metrics as native
from qmaps.engines.support import CUDA, NATIVE
from qmaps.ops import dispatch
from qmaps.ops.backends import cuda_engine

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


class Collector(Protocol):
    """Collects the errors of all parameters under one pair of quantizers."""

    def clear(self) -> None:
        """Forget all parameters, to begin anew with another pair."""

    def add(self, exact: Exact, first: Moment, second: Moment) -> None:
        """Add the errors of one parameter.

        Args:
            exact: the parameter's second moment, eps and update in 32 bits.
            first: its first moment under the pair: quantized, or in 32 bits.
            second: its second moment under the pair: quantized, or in 32 bits.
        """

    def columns(self) -> dict[str, float]:
        """Return the statistics over all parameters added so far, of which there is at least one.

        Returns:
            ``{mean,median,p99,p999,max}_{abs,rel}_error`` and `zeroed_share`; see `update_error`.
        """


class UpdateErrors:
    """Collects on the engine of the first parameter; all engines give the same quantiles."""

    def __init__(self) -> None:
        self._chosen: Collector | None = None

    def clear(self) -> None:
        """Forget all parameters, to begin anew with another pair on the same engine."""
        if self._chosen is not None:
            self._chosen.clear()

    def add(self, exact: Exact, first: Moment, second: Moment) -> None:
        """Add the errors of one parameter; see `Collector`."""
        if self._chosen is None:
            self._chosen = _collector(exact.update)
        self._chosen.add(exact, first, second)

    def columns(self) -> dict[str, float]:
        """Return the statistics over all parameters; see `Collector`."""
        assert self._chosen is not None
        return self._chosen.columns()


def _collector(update: Tensor) -> Collector:
    if (engine := cuda_engine(update)) is not None:
        return Cuda(engine)
    return Native() if dispatch.runs_native(update) else Reference()


def quantized(x: Tensor, q: Quantizer | None) -> tuple[Moment, int]:
    """Return `x` as a quantizer stores it, or `x` itself for None, and the bytes that it takes."""
    if q is None:
        return x, x.nbytes
    t = q.quantize(x)
    return t, t.nbytes


class Reference:
    """`Collector` in plain PyTorch and numpy."""

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
    """`Collector` of an engine that takes one pass over each parameter and decodes as it goes."""

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
    """`Collector` on the native engine."""

    def __init__(self) -> None:
        super().__init__(native.UpdateErrors(), torch.device("cpu"), NATIVE.decodes)


class Cuda(OnePass):
    """`Collector` on the CUDA engine."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(cuda.UpdateErrors(engine), engine.device, CUDA.decodes)


def element_errors(
    exact: Tensor, approximate: Tensor
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Absolute error of every element, and relative error of those whose exact value is not 0."""
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
