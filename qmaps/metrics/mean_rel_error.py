"""Mean relative error."""

import math

from torch import Tensor

from qmaps.metrics._sums import Sums


def mean_rel_error(x: Tensor, decoded: Tensor, codes: Tensor, size: int) -> float:
    """Mean of |x - decoded| / |x| over the elements that are not 0; a fraction, not percent.

    An element that decodes to 0 counts as 1. NaN where all elements are 0.
    """
    nonzero = x != 0
    exact = x[nonzero].double()
    if exact.numel() == 0:
        return math.nan
    return float(((exact - decoded[nonzero].double()) / exact).abs().mean())


def from_sums(sums: Sums) -> float:
    """The metric from the sums of a tensor."""
    return sums.relative / sums.nonzero if sums.nonzero else math.nan
