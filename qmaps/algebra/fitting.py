"""Fits codebooks on the engine in use for the tensor."""

from __future__ import annotations

from torch import Tensor

from qmaps.algebra import quantiles
from qmaps.engines.backends import native_runs
from qmaps.engines.least_squares import Cells
from qmaps.engines.native.least_squares import NativeCells
from qmaps.maps.fitted import fit_on


class Engine:
    """Quantiles and least squares for `qmaps.maps.fitted`."""

    def quantiles(self, values: Tensor, num: int, offset: float | None = None) -> Tensor:
        """Exact quantiles on the CPU; on CUDA, whatever the engine, those of SRAM-Quantiles."""
        estimate = quantiles.sram if values.is_cuda else quantiles.exact
        return estimate(values, num=num, offset=offset)

    def cells(self, values: Tensor, weights: Tensor | None) -> Cells:
        """`values` in ascending order, with prefix sums."""
        fast = values.device.type == "cpu" and native_runs()
        return (NativeCells if fast else Cells)(values, weights)


def install() -> None:
    """Let fits run here."""
    fit_on(Engine())
