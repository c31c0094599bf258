"""Mean relative error."""

import math

from qmaps.metrics._sums import Sums


def from_sums(sums: Sums) -> float:
    """Mean of |x - decoded| / |x| over the elements that are not 0; a fraction, not percent.

    An element that decodes to 0 counts as 1. NaN where all elements are 0.
    """
    return sums.relative / sums.nonzero if sums.nonzero else math.nan
