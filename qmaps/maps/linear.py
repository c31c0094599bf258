"""Linear without zero, the linear map of the 4-bit paper."""

from dataclasses import dataclass

import torch
from torch import Tensor

from qmaps.maps.base import Map


@dataclass(frozen=True)
class Linear(Map, name="linear"):
    """Evenly spaced values that leave out zero.

    Unsigned: ``(i + 1) / 2**bits``, in (0, 1], so no second moment decodes to zero.
    Signed: ``2**bits`` evenly spaced values from -1 to 1; zero falls between the two middle
    ones. 2 to 16 bits.

    Source: 4-bit optimizers, section 4.2 and its released code.
    """

    def widths(self, signed: bool) -> range:
        return range(2, 17)

    def values(self) -> Tensor:
        size = 2**self.bits
        i = torch.arange(size, dtype=torch.float64)
        low, steps = (-(size - 1), 2) if self.signed else (1, 1)
        return (low + steps * i).div(size - 1 if self.signed else size)
