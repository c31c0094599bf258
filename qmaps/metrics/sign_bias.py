"""Difference between what is kept of negative and of positive elements."""

import math

from qmaps.metrics._sums import Sums


def from_sums(sums: Sums) -> float:
    """Gain of the negative elements minus that of the positive ones; 0 for a symmetric error.

    The gain of elements x decoded to y is ``sum(x y) / sum(x x)``. Below 0, negative elements
    shrink more: a map such as `DE` holds +1 and no -1, so that the largest element of a block
    loses 11 % at 4 bits where it is negative. An optimizer feeds that back into its state in every
    step. NaN without elements of both signs.
    """
    positive_signal = sums.signal - sums.negative_signal
    if sums.negative_signal <= 0 or positive_signal <= 0:
        return math.nan
    positive = (sums.product - sums.negative_product) / positive_signal
    return sums.negative_product / sums.negative_signal - positive
