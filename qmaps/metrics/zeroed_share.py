"""Share of non-zero values that decode to zero."""

import math

from torch import Tensor

from qmaps.metrics._sums import Sums


def zeroed_share(x: Tensor, decoded: Tensor, codes: Tensor, size: int) -> float:
    """Share of the elements that are not 0 and decode to 0, of those that are not 0; 0 to 1.

    The zero-point problem counts these. NaN where all elements are 0.

    Source: 4-bit optimizers, section 4.1.
    """
    non_zero = x != 0
    count = int(non_zero.sum())
    return int((non_zero & (decoded == 0)).sum()) / count if count else math.nan


def from_sums(sums: Sums) -> float:
    """The metric from the sums of a tensor."""
    return sums.zeroed / sums.nonzero if sums.nonzero else math.nan
