"""HiFloat8: an 8-bit float whose fraction gets shorter as the exponent gets longer."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from qmaps.maps._float import FloatMap
from qmaps.maps.base import table, thresholds


@dataclass(frozen=True)
class HiFloat8(FloatMap, name="hif8"):
    """The finite values of HiFloat8, divided by 32768 so that they end at 1.

    Exponents of at most 3 bits in magnitude leave 3 bits of fraction (exponents -3 to 3), 2 bits
    (4 to 7, both signs) or 1 bit (8 to 15); below are the powers of two from 2**-22 to 2**-16.
    Signed in [-1, 1] with one zero; unsigned keeps the values from 0 to 1 and leaves half of the
    codes unused. 8 bits only. With `mx` and `raw` a tie goes to the larger magnitude.

    Source: Luo et al., 2024, "Ascend HiFloat8 format for deep learning", tables 2 to 4.
    """

    format_bits: ClassVar[int] = 8
    largest: ClassVar[float] = 2.0**15

    def thresholds(self) -> Tensor:
        between = thresholds(table(self))
        if not (self.mx or self.raw):
            return between
        away = torch.nextafter(between, between.new_tensor(-torch.inf))
        return torch.where(between > 0, away, between)

    @classmethod
    def magnitudes(cls) -> list[float]:
        values = [0.0, *(2.0**exponent for exponent in range(-22, -15))]
        for exponent in range(-15, 16):
            # The exponent's length in bits, its sign included, and 2 to 4 bits that give it.
            length = 1 + abs(exponent).bit_length() if exponent else 0
            fraction_bits = {0: 3, 2: 3, 3: 3, 4: 2, 5: 1}[length]
            steps = 2**fraction_bits
            values += [2.0**exponent * (1 + step / steps) for step in range(steps)]
        return values[:-1]  # the largest code is infinity
