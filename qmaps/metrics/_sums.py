"""Sums that an engine computes in one pass and that most metrics can be computed from."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Sums:
    """Float64 sums over the elements of a tensor; x what was given, y what it decoded to.

    Attributes:
        numel: elements, at least 1.
        absolute: sum of |x - y|.
        square: sum of (x - y)**2.
        signal: sum of x**2.
        relative: sum of |x - y| / |x| over elements that are not 0.
        largest: largest |x - y|.
        nonzero: elements that are not 0.
        zeroed: those of them that decode to 0.
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
