"""The 8-bit float with 4 exponent and 3 mantissa bits."""

from dataclasses import dataclass
from typing import ClassVar

from qmaps.maps._float import FloatMap


@dataclass(frozen=True)
class Float8E4M3(FloatMap, name="e4m3"):
    """The finite values of e4m3, divided by 448 so that they end at 1.

    Signed in [-1, 1] with one zero; unsigned keeps the values from 0 to 1 and leaves half of
    the codes unused. 8 bits only.

    Source: OCP 8-bit floating point specification, revision 1.0, table 1.
    """

    format_bits: ClassVar[int] = 8
    exponent_bits: ClassVar[int] = 4
    largest: ClassVar[float] = 448.0
