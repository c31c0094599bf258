"""Thresholds between the values of a codebook, exact for every float32."""

import torch
from torch import Tensor


def thresholds(codebook: Tensor) -> Tensor:
    """For each pair of neighbours, the largest float32 that is not nearer to the upper one.

    Then ``code = number of thresholds below n`` is exact without any arithmetic on n. The
    midpoint is kept as an unevaluated float64 sum (two-sum), so its rounding is known. Equal
    neighbours take the threshold after them. Equal neighbours at the end of the codebook take the
    largest finite float32, which only infinity exceeds.

    Args:
        codebook: ascending float32 values of shape (size,).

    Returns:
        Ascending float32 values of shape (size - 1,).
    """
    low, high = codebook[:-1].double(), codebook[1:].double()
    total = low + high
    virtual = total - low
    lost = (low - (total - virtual)) + (high - virtual)  # low + high == total + lost, exactly
    middle = total / 2
    rounded = middle.float()
    wide = rounded.double()
    above = (wide > middle) | ((wide == middle) & (lost < 0))
    down = torch.nextafter(rounded, rounded.new_tensor(-torch.inf))
    limits = torch.where(above, down, rounded)
    limits = torch.where(low == high, torch.finfo(torch.float32).max, limits)
    return limits.flip(0).cummin(0).values.flip(0)
