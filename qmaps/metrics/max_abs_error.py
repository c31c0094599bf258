"""Largest absolute error."""

from torch import Tensor

from qmaps.metrics._sums import Sums


def max_abs_error(x: Tensor, decoded: Tensor, codes: Tensor, size: int) -> float:
    """Largest |x - decoded|, in the units of x."""
    return float((x.double() - decoded.double()).abs().max())


def from_sums(sums: Sums) -> float:
    """The metric from the sums of a tensor."""
    return sums.largest
