"""Mean absolute error."""

from torch import Tensor


def mean_abs_error(x: Tensor, decoded: Tensor, codes: Tensor, size: int) -> float:
    """Mean of |x - decoded|, in the units of x."""
    return float((x.double() - decoded.double()).abs().mean())
