"""Mean squared error."""

from qmaps.metrics._sums import Sums


def from_sums(sums: Sums) -> float:
    """Mean of (x - decoded)**2, in the squared units of x."""
    return sums.square / sums.numel
