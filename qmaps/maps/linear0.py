"""Linear with zero, the linear map of the 8-bit paper and of LPMM."""

from dataclasses import dataclass

import torch
from torch import Tensor

from qmaps.maps.base import Map


@dataclass(frozen=True)
class Linear0(Map, name="linear0"):
    """Evenly spaced values that hold zero.

    Unsigned: ``i / (2**bits - 1)``, in [0, 1]. Signed: ``k / (2**(bits-1) - 1)`` for
    ``|k| <= 2**(bits-1) - 1``, in [-1, 1], symmetric, one code unused. 2 to 16 bits.

    Source: 8-bit optimizers, figures 4 to 6 and table 6 ("linear"); LPMM, section 3.

    Attributes:
        full: let the code that is unused in a signed map stand for half of the smallest positive
            value: -1, 0, 0.5 and 1 at 2 bits.
    """

    full: bool = False

    def widths(self, signed: bool) -> range:
        return range(2, 17)

    def values(self) -> Tensor:
        top = 2 ** (self.bits - self.signed) - 1
        low = -top if self.signed else 0
        values = [*range(low, top + 1), *([0.5] if self.full and self.signed else [])]
        return torch.tensor(sorted(values), dtype=torch.float64).div(top)
