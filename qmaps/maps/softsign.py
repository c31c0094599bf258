"""Evenly spaced under the softsign function."""

from dataclasses import dataclass

from qmaps.maps._transforms import SoftsignOf, Transform
from qmaps.maps.transformed import CompandedMap


@dataclass(frozen=True)
class Softsign(CompandedMap, name="softsign"):
    """``x = y / (2 - |y|)`` of the values y of `linear0`: evenly spaced in ``2x / (1 + |x|)``.

    Four times as fine at zero as at 1. Holds zero. Signed in [-1, 1], symmetric, with an odd
    number of values; unsigned in [0, 1].

    Source: FlashOptim, released code (package flashoptim 0.1.4), of first moments.

    Attributes:
        nearest: place thresholds halfway between values, not between their transforms.
    """

    @property
    def transform(self) -> Transform:
        return SoftsignOf()
