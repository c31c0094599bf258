"""Maps with the values of a small binary floating-point format."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from qmaps.errors import BadValueError, check_bool
from qmaps.maps.base import Map, mirror


@dataclass(frozen=True)
class FloatMap(Map):
    """The finite values of a format of `format_bits`: sign, `exponent_bits`, the rest mantissa.

    The values are divided by `largest`, the greatest finite value, so that they end at 1. Bias and
    subnormals are those of IEEE formats; codes above `largest` (infinities and NaN) are left out.
    Signed in [-1, 1] with one zero; unsigned keeps the values from 0 to 1 and leaves half of the
    codes unused.

    With `mx` the values are divided by the power of two above `largest` instead, so that they are
    exact in float32, and ties go to the value whose last bit is 0. This is the map under scales
    that are powers of two (``xe8m0``), and elements up to twice its end saturate. With `raw` they
    are not divided, which is the map without scales (``unscaled``); ties go as with `mx`.

    Attributes:
        mx: as in the OCP microscaling formats.
        raw: the values of the format as they are.
    """

    mx: bool = False
    raw: bool = False

    format_bits: ClassVar[int]
    """Width of the format, and of a code."""
    exponent_bits: ClassVar[int]
    """Width of the exponent, at least 1."""
    largest: ClassVar[float]
    """The greatest finite value before scaling, such as 448.0 for e4m3."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bool("mx", self.mx)
        check_bool("raw", self.raw)
        if self.mx and self.raw:
            raise BadValueError(f"mx=True of {self.spec_name} does not go with raw=True")

    def widths(self, signed: bool) -> range:
        return range(self.format_bits, self.format_bits + 1)

    def values(self) -> Tensor:
        if self.raw:
            return mirror(self.magnitudes(), signed=self.signed)
        end = 2.0 ** math.frexp(self.largest)[1] if self.mx else self.largest
        scaled = [value / end for value in self.magnitudes()]
        # What is smaller has not the format's digits in float32.
        normal = [v for v in scaled if v == 0 or v >= torch.finfo(torch.float32).tiny]
        return mirror(normal, signed=self.signed)

    def thresholds(self) -> Tensor:
        between = super().thresholds()
        if not (self.mx or self.raw):
            return between
        # Both midpoints and values are exact: below a value of odd index a tie goes up. The other
        # sign mirrors that.
        index = torch.arange(len(between)) - (len(between) // 2 if self.signed else 0)
        left_out = len(self.magnitudes()) - (len(between) // (1 + self.signed) + 1)
        up = (index + left_out) % 2 == 1
        return torch.where(up, torch.nextafter(between, between.new_tensor(-torch.inf)), between)

    def for_scales(self, *, powers_of_two: bool = False, ones: bool = False) -> Map:
        return replace(self, mx=powers_of_two, raw=ones)

    @classmethod
    def magnitudes(cls) -> list[float]:
        """The format's finite values from 0 on, ascending, before scaling."""
        mantissa_bits = cls.format_bits - 1 - cls.exponent_bits
        bias = 2 ** (cls.exponent_bits - 1) - 1
        values = []
        for code in range(2 ** (cls.format_bits - 1)):
            exponent, fraction = divmod(code, 2**mantissa_bits)
            if exponent == 0:
                value = fraction * 2.0 ** (1 - bias - mantissa_bits)
            else:
                value = (2**mantissa_bits + fraction) * 2.0 ** (exponent - bias - mantissa_bits)
            if value <= cls.largest:
                values.append(value)
        return values
