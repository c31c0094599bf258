"""Evenly spaced under the mu-law of telephony."""

from dataclasses import dataclass

from qmaps.maps._transforms import MuLawOf, Transform
from qmaps.maps.base import check_range
from qmaps.maps.transformed import CompandedMap


@dataclass(frozen=True)
class MuLaw(CompandedMap, name="mu-law"):
    """``x = ((1 + mu)**y - 1) / mu`` of the values y of `linear0`, with their sign.

    Evenly spaced in ``log(1 + mu x) / log(1 + mu)``: almost linear below 1 / mu, logarithmic
    above. Holds zero. Signed in [-1, 1], symmetric, with an odd number of values; unsigned in
    [0, 1].

    Source: ITU-T recommendation G.711, which has ``mu = 255``, before its approximation by
    segments.

    Attributes:
        nearest: place thresholds halfway between values, not between their transforms.
        mu: from 1 to 1048576; the larger, the finer near zero.
    """

    mu: int = 255

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("mu", self.mu, 1, 2**20)

    @property
    def transform(self) -> Transform:
        return MuLawOf(self.mu)
