"""Mean absolute error."""

from torch import Tensor

from qmaps.metrics._sums import Sums


def mean_abs_error(x: Tensor, decoded: Tensor, codes: Tensor, size: int) -> float:
    """Mean of |x - decoded|, in the units of x."""
    return float((x.double() - decoded.double()).abs().mean())


def from_sums(sums: Sums) -> float:
    """The metric from the sums of a tensor."""
    return sums.absolute / sums.numel
