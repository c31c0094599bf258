"""Sums from which most metrics are computed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sums:
    """Float64 sums over the elements of a tensor x, decoded to y.

    Attributes:
        numel: elements, at least 1.
        absolute: sum of |x - y|.
        square: sum of (x - y)**2.
        signal: sum of x**2.
        relative: sum of |x - y| / |x| over nonzero elements.
        signed_error: sum of y - x.
        largest: largest |x - y|.
        nonzero: number of nonzero elements.
        zeroed: number of nonzero elements decoded to 0.
        codes: int64 of shape (codebook size,), how often each code occurs.
    """

    numel: int
    absolute: float
    square: float
    signal: float
    relative: float
    signed_error: float
    largest: float
    nonzero: int
    zeroed: int
    codes: Tensor

    @staticmethod
    def of(x: Tensor, decoded: Tensor, codes: Tensor, size: int) -> Sums:
        """The sums of one tensor of at least one element; arguments as for `measure`."""
        exact, y = x.double(), decoded.double()
        error = (exact - y).abs()
        nonzero = exact != 0
        return Sums(
            x.numel(),
            float(error.sum()),
            float(error.square().sum()),
            float(exact.square().sum()),
            float((error[nonzero] / exact[nonzero].abs()).sum()),
            float((y - exact).sum()),
            float(error.max()),
            int(nonzero.sum()),
            int((nonzero & (y == 0)).sum()),
            torch.bincount(codes.reshape(-1), minlength=size),
        )
