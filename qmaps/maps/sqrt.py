"""Evenly spaced under the square root."""

from dataclasses import dataclass

from qmaps.maps._transforms import SquareRootOf, Transform
from qmaps.maps.transformed import CompandedMap


@dataclass(frozen=True)
class SquareRoot(CompandedMap, name="sqrt"):
    """``x = y**2`` of the values y of `linear0`, with their sign: evenly spaced in ``sqrt(x)``.

    Holds zero. Signed in [-1, 1], symmetric, with an odd number of values; unsigned in [0, 1].
    `power2` squares the values of `linear`, which leave out zero.

    Source: FlashOptim, released code (package flashoptim 0.1.4), of second moments.

    Attributes:
        nearest: place thresholds halfway between values, not between their square roots.
    """

    @property
    def transform(self) -> Transform:
        return SquareRootOf()
