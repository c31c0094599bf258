"""The 16-bit float with 8 exponent and 7 mantissa bits: bfloat16."""

from dataclasses import dataclass
from typing import ClassVar

from qmaps.maps._float import FloatMap


@dataclass(frozen=True)
class Float16E8M7(FloatMap, name="bf16"):
    """The finite values of bfloat16, divided by 3.39e38 so that they end at 1.

    What would be a subnormal number of float32 is left out. Signed in [-1, 1] with one zero;
    unsigned keeps the values from 0 to 1 and leaves half of the codes unused. 16 bits only.
    Without scales, ``unscaled/bf16@16s``, the values are those of the format, and ties go to the
    even one: an element is rounded to bfloat16.

    Source: TensorFlow, Google, 2018; float32 without its lower 16 bits.
    """

    format_bits: ClassVar[int] = 16
    exponent_bits: ClassVar[int] = 8
    largest: ClassVar[float] = (2 - 2**-7) * 2.0**127
