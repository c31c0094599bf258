"""Largest absolute error."""

from qmaps.metrics._sums import Sums


def from_sums(sums: Sums) -> float:
    """Largest |x - decoded|, in the units of x."""
    return sums.largest
