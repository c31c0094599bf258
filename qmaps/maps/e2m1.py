"""The 4-bit float with 2 exponent bits and 1 mantissa bit."""

from dataclasses import dataclass
from typing import ClassVar

from qmaps.maps._float import FloatMap


@dataclass(frozen=True)
class Float4E2M1(FloatMap, name="e2m1"):
    """The finite values of e2m1, divided by 6 so that they end at 1.

    Signed in [-1, 1] with one zero; unsigned keeps the values from 0 to 1 and leaves half of
    the codes unused. 4 bits only.

    Source: OCP microscaling formats specification, version 1.0, section 5.3.3.
    """

    format_bits: ClassVar[int] = 4
    exponent_bits: ClassVar[int] = 2
    largest: ClassVar[float] = 6.0
