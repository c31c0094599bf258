"""Quantiles of the data: every code is used equally often."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from qmaps.errors import check_bool
from qmaps.maps.fitted import FitFunctions, FittedMap, in_use


@dataclass(frozen=True)
class Quantile(FittedMap, name="quantile"):
    """The lossy minimum-entropy encoding: code i stands for a quantile of the tensor.

    ``Q((i + 1/2) / 2**bits)`` of the normalized values, not rescaled. Q is exact for tensors on the
    CPU, and estimated by SRAM-Quantiles (`qmaps.quantiles.sram`) for CUDA tensors, on any engine.

    Attributes:
        midpoints: the paper's equation 5 instead: the midpoints of neighbours among the
            ``2**bits + 1`` equally spaced quantiles, Q(0) and Q(1) being the sample's ends.

    Source: 8-bit optimizers, appendices E.2 and F.
    """

    weighted: ClassVar[bool] = False
    midpoints: bool = False

    def __post_init__(self) -> None:
        check_bool("midpoints", self.midpoints)
        super().__post_init__()

    def fit_values(
        self, values: Tensor, weights: Tensor | None, functions: FitFunctions | None = None
    ) -> Tensor:
        quantiles = (functions or in_use()).quantiles
        if not self.midpoints:
            return quantiles(values, num=2**self.bits)
        edges = quantiles(values, num=2**self.bits + 1, offset=0.0).double()
        return ((edges[:-1] + edges[1:]) / 2).float()
