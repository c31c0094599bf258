"""Mean absolute error."""

from qmaps.metrics._sums import Sums


def from_sums(sums: Sums) -> float:
    """Mean of |x - decoded|, in the units of x."""
    return sums.absolute / sums.numel
