"""The 8-bit float with 5 exponent and 2 mantissa bits."""

from dataclasses import dataclass
from typing import ClassVar

from qmaps.maps._float import FloatMap


@dataclass(frozen=True)
class Float8E5M2(FloatMap, name="e5m2"):
    """The finite values of e5m2, divided by 57344 so that they end at 1.

    Signed in [-1, 1] with one zero; unsigned keeps the values from 0 to 1 and leaves half of
    the codes unused. 8 bits only.

    Source: OCP 8-bit floating point specification, revision 1.0, table 1.
    """

    format_bits: ClassVar[int] = 8
    exponent_bits: ClassVar[int] = 5
    largest: ClassVar[float] = 57344.0
