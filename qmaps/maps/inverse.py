"""Inverse dynamic exponent: the most precise decade is the smallest."""

from dataclasses import dataclass

from torch import Tensor

from qmaps.maps.base import Map, mirror
from qmaps.maps.de import decades


@dataclass(frozen=True)
class InverseDynamic(Map, name="inverse"):
    """`DE` with its decades reversed: the more leading zeros, the larger the value.

    For E leading zeros, ``10**-(Emax - E)`` times the midpoints that `DE` has for E; 0 and 1
    besides. Unsigned in [0, 1]; signed in (-1, 1], so -1 is not held.

    Source: 8-bit optimizers, appendix E.1.
    """

    def values(self) -> Tensor:
        by_zeros = decades(self.bits, self.signed)
        magnitudes = [
            midpoint * 10.0 ** -(len(by_zeros) - 1 - zeros)
            for zeros, midpoints in enumerate(by_zeros)
            for midpoint in midpoints
        ]
        return mirror(magnitudes, 0.0, 1.0, signed=self.signed)
