"""The 16-bit float with 5 exponent and 10 mantissa bits: float16."""

from dataclasses import dataclass
from typing import ClassVar

from qmaps.maps._float import FloatMap


@dataclass(frozen=True)
class Float16E5M10(FloatMap, name="fp16"):
    """The finite values of float16, divided by 65504 so that they end at 1.

    Signed in [-1, 1] with one zero; unsigned keeps the values from 0 to 1 and leaves half of
    the codes unused. 16 bits only. Without scales, ``unscaled/fp16@16s``, the values are those of
    the format, and ties go to the even one: an element is rounded to float16.

    Source: IEEE 754, binary16.
    """

    format_bits: ClassVar[int] = 16
    exponent_bits: ClassVar[int] = 5
    largest: ClassVar[float] = 65504.0
