"""Mean squared error."""

from torch import Tensor


def mse(x: Tensor, decoded: Tensor, codes: Tensor, size: int) -> float:
    """Mean of (x - decoded)**2, in the squared units of x."""
    return float((x.double() - decoded.double()).square().mean())
