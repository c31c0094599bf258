"""The 8-bit float with 4 exponent and 3 mantissa bits."""

from dataclasses import dataclass

from torch import Tensor

from qmaps.maps._float8 import float8_values
from qmaps.maps.base import Map


@dataclass(frozen=True)
class Float8E4M3(Map, name="e4m3"):
    """The finite values of e4m3, divided by 448 so that they end at 1.

    Signed in [-1, 1] with one zero; unsigned keeps the values from 0 to 1 and leaves half of
    the codes unused. 8 bits only.

    Source: OCP 8-bit floating point specification, revision 1.0, table 1.
    """

    def widths(self, signed: bool) -> range:
        return range(8, 9)

    def values(self) -> Tensor:
        return float8_values(exponent_bits=4, largest=448.0, signed=self.signed)
