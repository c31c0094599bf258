"""Rounding of normalized values to codes, as a part of a spec."""

from __future__ import annotations

from enum import Enum


class Rounding(Enum):
    """Rounding mode of a quantizer; the value is the end of its spec.

    Attributes:
        NEAREST: the nearest code; a tie goes to the lower one.
        STOCHASTIC: one of the two neighbours at random, unbiased.
        QUASI_STOCHASTIC: one of the two neighbours, unbiased over the steps of a training: the
            thresholds of an element are spread evenly over successive steps
            (`qmaps.algebra.philox.RoundingKey`).
        DITHERED: subtractive dither: a random part of a gap is added before rounding to the
            nearest, and decoding takes the same part away (`qmaps.engines.dither`).
        FEEDBACK_4: error feedback: to the nearest, with the error stored in 4 bits and added
            before the next encoding (`qmaps.algebra.feedback`).
        FEEDBACK_8: the same in 8 bits.
        random: True if it takes random numbers, named by a `RoundingKey`.
        stochastic: True if it takes one of the two neighbours by such a number.
        residual_bits: bits per rounding error stored by error feedback; None without it.
        memoryless: True if codes and scales suffice for decoding and the next encoding.

    >>> Rounding("+sr")
    <Rounding.STOCHASTIC: '+sr'>
    """

    random: bool
    stochastic: bool
    residual_bits: int | None
    memoryless: bool

    NEAREST = ""
    STOCHASTIC = "+sr"
    QUASI_STOCHASTIC = "+qsr"
    DITHERED = "+dither"
    FEEDBACK_4 = "+ef4"
    FEEDBACK_8 = "+ef8"

    def __init__(self, suffix: str) -> None:
        self.stochastic = suffix in ("+sr", "+qsr")
        self.random = self.stochastic or suffix == "+dither"
        self.residual_bits = {"+ef4": 4, "+ef8": 8}.get(suffix)
        self.memoryless = suffix == "" or self.stochastic


SUFFIXES = tuple(rounding.value for rounding in Rounding if rounding.value)
"""The ends of specs that name a rounding."""
