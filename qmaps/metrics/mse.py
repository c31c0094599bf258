"""Mean squared error."""

from torch import Tensor

from qmaps.metrics._sums import Sums


def mse(x: Tensor, decoded: Tensor, codes: Tensor, size: int) -> float:
    """Mean of (x - decoded)**2, in the squared units of x."""
    return float((x.double() - decoded.double()).square().mean())


def from_sums(sums: Sums) -> float:
    """The metric from the sums of a tensor."""
    return sums.square / sums.numel
