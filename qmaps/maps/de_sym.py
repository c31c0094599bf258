"""Symmetric dynamic exponent, the signed map of our own presets."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from qmaps.maps.base import Map, mirror
from qmaps.maps.de import magnitudes


@dataclass(frozen=True)
class DynamicExponentSymmetric(Map, name="DE-sym"):
    """Signed `DE` that holds -1 as well: its largest midpoint is moved to 1, its sign mirrored.

    ``2**bits - 1`` values in [-1, 1], symmetric about 0, one code unused; 0, ±0.0055, ±0.0325,
    ±0.0775, ±0.2125, ±0.4375, ±0.6625 and ±1 at 4 bits. `DE` holds +1 and not -1, so that the
    largest element of a block shrinks where it is negative: by 11 % at 4 bits, in every step of an
    optimizer.
    """

    signs: ClassVar[tuple[bool, ...]] = (True,)

    def values(self) -> Tensor:
        below_1 = sorted(magnitudes(self.bits, self.signed))[:-1]
        return mirror([*below_1, 1.0], 0.0, signed=True)
