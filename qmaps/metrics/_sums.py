"""Sums for most metrics, computed by an engine in one pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
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
    largest: float
    nonzero: int
    zeroed: int
    codes: Tensor

    @staticmethod
    def of(x: Tensor, decoded: Tensor, codes: Tensor, size: int) -> Sums:
        """The sums of one tensor, with equal bits for any number of threads.

        Args:
            x: float32 values on the CPU, of any shape with at least one element.
            decoded: the decoded values, float32 of the same shape.
            codes: their codes, int32 of the same shape.
            size: number of values in the codebook.
        """
        exact = x.reshape(-1).numpy().astype(np.float64)
        error = np.abs(exact - decoded.reshape(-1).numpy())
        nonzero = exact != 0
        return Sums(
            x.numel(),
            float(error.sum()),
            float(np.square(error).sum()),
            float(np.square(exact).sum()),
            float((error[nonzero] / np.abs(exact[nonzero])).sum()),
            float(error.max()),
            int(nonzero.sum()),
            int((nonzero & (decoded.reshape(-1).numpy() == 0)).sum()),
            torch.bincount(codes.reshape(-1), minlength=size),
        )
