"""Numbers of the formats of stored scales, declared here for Python, C++ and CUDA.

`qmaps.engines.kernels.declarations` makes the C++ from this file without importing qmaps, so this
file imports nothing of it. ``qmaps/engines/kernels/scale_formats.hpp`` converts scales to and from
their bits.
"""

from __future__ import annotations

from enum import IntEnum


class ScaleKind(IntEnum):
    """Formats of scales other than codes of a log2 grid; see `qmaps.normalize.scale_format`.

    The members of ``FLOAT32 = 0, 4`` are the number in C++, where the name is ``kScaleFloat32``,
    and the bytes of a stored scale.

    Scales in E4M3 are multiples of a float32 number, which `Part.ends` has. `ONE` is float32, and
    no format: the scale is 1, or 0 for a tensor of zeros, and NaN where one element is not finite.
    `SIXTEENTHS` are exponents in 8 bits, 16 times as large.

    Attributes:
        nbytes: bytes of a stored scale.
    """

    nbytes: int

    FLOAT32 = 0, 4
    FLOAT16 = 1, 2
    BFLOAT16 = 2, 2
    FLOAT16_SQUARED = 3, 2
    POWER_OF_TWO = 4, 1
    E4M3 = 5, 1
    ONE = 6, 4
    SIXTEENTHS = 7, 1

    def __new__(cls, number: int, nbytes: int) -> ScaleKind:
        member = int.__new__(cls, number)
        member._value_ = number
        member.nbytes = nbytes
        return member
