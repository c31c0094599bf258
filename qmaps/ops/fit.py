"""Codebooks fitted to tensors, on the engine in use."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from qmaps.algebra import fit
from qmaps.algebra.quantizer import Quantizer
from qmaps.engines.native.least_squares import NativeCells
from qmaps.maps.fitted import FitFunctions
from qmaps.maps.lloyd import Cells
from qmaps.ops.backends import native_runs
from qmaps.ops.quantiles import exact, sram


def quantiles(values: Tensor, num: int, offset: float | None = None) -> Tensor:
    """Exact quantiles on the CPU; on CUDA, whatever the engine, those of SRAM-Quantiles."""
    return (sram if values.is_cuda else exact)(values, num=num, offset=offset)


def cells(values: Tensor, weights: Tensor | None) -> Cells:
    """1-D float32 `values` in ascending order, with prefix sums."""
    fast = values.device.type == "cpu" and native_runs()
    return (NativeCells if fast else Cells)(values, weights)


FUNCTIONS = FitFunctions(quantiles, cells)


def fit_each(quantizers: Sequence[Quantizer], x: Tensor) -> list[Quantizer]:
    """See `qmaps.algebra.fit`."""
    return fit.fit_each(quantizers, x, FUNCTIONS)


def fit_normalized(quantizers: Sequence[Quantizer], n: Tensor, scale: Tensor) -> list[Quantizer]:
    """See `qmaps.algebra.fit`."""
    return fit.fit_normalized(quantizers, n, scale, FUNCTIONS)
