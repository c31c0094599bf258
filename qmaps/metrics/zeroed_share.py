"""Share of non-zero values that decode to zero."""

import math

from qmaps.metrics._sums import Sums


def from_sums(sums: Sums) -> float:
    """Share of the elements that are not 0 and decode to 0, of those that are not 0; 0 to 1.

    The zero-point problem counts these. NaN where all elements are 0.

    Source: 4-bit optimizers, section 4.1.
    """
    return sums.zeroed / sums.nonzero if sums.nonzero else math.nan
