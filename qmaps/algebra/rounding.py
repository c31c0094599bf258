"""Rounding of normalized values to codes, as a part of a spec."""

from __future__ import annotations

from enum import Enum
from typing import NoReturn

from qmaps.errors import SpecError, shown

REMOVED = ("+dither", "+ef4", "+ef8")
"""Roundings of version 0.3 that later versions do not have."""


class Rounding(Enum):
    """Rounding mode of a quantizer; the value is the end of its spec.

    Attributes:
        NEAREST: the nearest code; a tie goes to the lower one.
        STOCHASTIC: one of the two neighbours at random, unbiased.
        QUASI_STOCHASTIC: one of the two neighbours, unbiased over the steps of a training: the
            thresholds of an element are spread evenly over successive steps
            (`qmaps.algebra.philox.RoundingKey`).
        stochastic: True if it takes one of the two neighbours by a random number, named by a
            `RoundingKey`.

    >>> Rounding("+sr")
    <Rounding.STOCHASTIC: '+sr'>
    """

    stochastic: bool

    NEAREST = ""
    STOCHASTIC = "+sr"
    QUASI_STOCHASTIC = "+qsr"

    def __init__(self, suffix: str) -> None:
        self.stochastic = suffix != ""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        if value in REMOVED:
            raise SpecError(f"the rounding {value} was removed in version 0.4; use +qsr")
        allowed = ", ".join(repr(rounding.value) for rounding in cls)
        raise SpecError(f"rounding={shown(value)} must be one of {allowed}")


SUFFIXES = tuple(rounding.value for rounding in Rounding if rounding.value)
"""The ends of specs that name a rounding."""
