"""Largest absolute error."""

from torch import Tensor


def max_abs_error(x: Tensor, decoded: Tensor, codes: Tensor, size: int) -> float:
    """Largest |x - decoded|, in the units of x."""
    return float((x.double() - decoded.double()).abs().max())
