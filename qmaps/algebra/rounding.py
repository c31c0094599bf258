"""How a normalized value becomes a code, as a part of a spec."""

from __future__ import annotations

from enum import Enum


class Rounding(Enum):
    """How a quantizer rounds; the value is the end of its spec.

    Attributes:
        NEAREST: the nearest code; a tie goes to the lower one.
        STOCHASTIC: one of the two neighbours at random, so that the mean is the value.
        DITHERED: subtractive dither: a random part of a gap is added before rounding to the
            nearest, and decoding takes the same part away (`qmaps.engines.dither`).

    >>> Rounding("+sr")
    <Rounding.STOCHASTIC: '+sr'>
    """

    NEAREST = ""
    STOCHASTIC = "+sr"
    DITHERED = "+dither"

    @property
    def random(self) -> bool:
        """Whether it takes random numbers, which a `RoundingKey` names."""
        return self is not Rounding.NEAREST

    @property
    def words(self) -> str:
        """What pages say: ``to nearest`` or ``stochastic``."""
        return "to nearest" if self is Rounding.NEAREST else self.name.lower()


SUFFIXES = tuple(rounding.value for rounding in Rounding if rounding.value)
"""The ends of specs that name a rounding."""
