"""The mantissa data type of 2015: a small decimal floating-point number."""

from dataclasses import dataclass

import torch
from torch import Tensor

from qmaps.maps.base import Map, check_range


@dataclass(frozen=True)
class Mantissa(Map, name="mantissa"):
    """An integer mantissa times a power of ten.

    ``m * 10**(offset - 1 - E)`` with E = 0..2**exponent_bits-1 and an integer m of the bits
    left after sign and exponent; 8-bit signed: m = 0..15. Values that two (m, E) pairs share
    are held once, so the codebook is smaller than ``2**bits``. With ``offset=0`` the largest
    decade begins at 0.1 and ends above 1, which the format has and normalized values leave
    unused.

    Attributes:
        exponent_bits: width of the exponent; at least one bit is left for the mantissa.
        offset: decimal exponent added to every value, as for `static-tree`.

    Source: 8-bit approximations for parallelism, section 2 ("mantissa").
    """

    exponent_bits: int = 3
    offset: int = 0

    def __post_init__(self) -> None:
        check_range("exponent_bits", self.exponent_bits, 1, 4)
        check_range("offset", self.offset, -20, 20)
        super().__post_init__()

    def widths(self, signed: bool) -> range:
        return range(signed + self.exponent_bits + 1, 9)

    def values(self) -> Tensor:
        mantissas = range(2 ** (self.bits - self.signed - self.exponent_bits))
        lowest = 2**self.exponent_bits - 1
        # Integers, so that 10 * 10**-2 and 1 * 10**-1 count as one value.
        scaled = {m * 10 ** (lowest - e) for m in mantissas for e in range(lowest + 1)}
        scaled |= {-value for value in scaled} if self.signed else set()
        exponent = lowest + 1 - self.offset
        values = [
            value / 10**exponent if exponent >= 0 else float(value * 10**-exponent)
            for value in sorted(scaled)
        ]
        return torch.tensor(values, dtype=torch.float64)
