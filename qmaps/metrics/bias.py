"""Mean error relative to the root mean square."""

import math

from qmaps.metrics._sums import Sums


def from_sums(sums: Sums) -> float:
    """Mean of decoded - x, divided by the root mean square of x; 0 for an error without direction.

    Above 0 for signed values, negative ones shrink more than positive ones: a map such as `DE`
    holds +1 and no -1, so that the largest element of a block loses 11 % at 4 bits where it is
    negative. An optimizer feeds that back into its state in every step. For unsigned values it is
    the relative shift of their mean. NaN where all elements are 0.
    """
    rms = math.sqrt(sums.signal / sums.numel)
    return sums.signed_error / sums.numel / rms if rms else math.nan
