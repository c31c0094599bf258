"""Dynamic exponent without zero, the 4-bit paper's remedy for the zero-point problem."""

from dataclasses import dataclass

from torch import Tensor

from qmaps.maps.base import Map, mirror
from qmaps.maps.de import magnitudes


@dataclass(frozen=True)
class DynamicExponentNonZero(Map, name="DE-0"):
    """`DE` without its zero: ``2**bits - 1`` values.

    Unsigned, as the paper uses it for the second moment: 15 values at 4 bits, the smallest
    0.00325 (printed 0.0033), in (0, 1]. Signed, by the same rule, in (-1, 1].

    Source: 4-bit optimizers, section 4.1.
    """

    def values(self) -> Tensor:
        return mirror(magnitudes(self.bits, self.signed), 1.0, signed=self.signed)
