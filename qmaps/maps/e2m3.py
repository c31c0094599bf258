"""The 6-bit float with 2 exponent and 3 mantissa bits."""

from dataclasses import dataclass
from typing import ClassVar

from qmaps.maps._float import FloatMap


@dataclass(frozen=True)
class Float6E2M3(FloatMap, name="e2m3"):
    """The finite values of e2m3, divided by 7.5 so that they end at 1.

    Signed in [-1, 1] with one zero; unsigned keeps the values from 0 to 1 and leaves half of
    the codes unused. 6 bits only.

    Source: OCP microscaling formats specification, version 1.0, section 5.3.2.
    """

    format_bits: ClassVar[int] = 6
    exponent_bits: ClassVar[int] = 2
    largest: ClassVar[float] = 7.5
