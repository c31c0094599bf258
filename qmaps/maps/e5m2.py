"""The 8-bit float with 5 exponent and 2 mantissa bits."""

from dataclasses import dataclass

from torch import Tensor

from qmaps.maps._float8 import float8_values
from qmaps.maps.base import Map


@dataclass(frozen=True)
class Float8E5M2(Map, name="e5m2"):
    """The finite values of e5m2, divided by 57344 so that they end at 1.

    Signed in [-1, 1] with one zero; unsigned keeps the values from 0 to 1 and leaves half of
    the codes unused. 8 bits only.

    Source: OCP 8-bit floating point specification, revision 1.0, table 1.
    """

    def widths(self, signed: bool) -> range:
        return range(8, 9)

    def values(self) -> Tensor:
        return float8_values(exponent_bits=5, largest=57344.0, signed=self.signed)
