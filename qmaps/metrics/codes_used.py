"""Share of the codes that occur."""

from qmaps.metrics._sums import Sums


def from_sums(sums: Sums) -> float:
    """Number of different codes that occur over the size of the codebook, 0 to 1."""
    return int((sums.codes > 0).sum()) / sums.codes.numel()
