"""Quantiles of the normal distribution."""

from dataclasses import dataclass

import torch
from torch import Tensor

from qmaps.maps.base import Map


@dataclass(frozen=True)
class NormalQuantile(Map, name="quantile-normal"):
    """Quantiles ``Q((i + 1/2) / 2**bits)`` of the normal distribution, rescaled to end at 1.

    Signed: of the standard normal distribution, in [-1, 1], symmetric, no zero. Unsigned: of
    its absolute value (half-normal), in (0, 1].

    Source: 8-bit optimizers, appendix E.3 and figure 6.
    """

    def values(self) -> Tensor:
        size = 2**self.bits
        level = (torch.arange(size, dtype=torch.float64) + 0.5) / size
        values: Tensor = torch.special.ndtri(level if self.signed else 0.5 + level / 2)
        if self.signed:
            values = (values - values.flip(0)) / 2  # ndtri is symmetric only up to rounding
        return values / values[-1]
