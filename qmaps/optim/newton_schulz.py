"""The Newton-Schulz iteration that Muon orthogonalizes updates by."""

from __future__ import annotations

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Steep at 0, so that few steps are enough; singular values end near 1, not at it."""
STEPS = 5
MOST_STEPS = 99
EPS = 1e-7
LARGEST = torch.finfo(torch.bfloat16).max


def orthogonal(
    matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> Tensor:
    """A matrix with the singular vectors of another one, and singular values near 1.

    Each step is X = a X + (b A + c A A) X with A = X X^T, in bfloat16, on the side with fewer rows.

    Args:
        matrix: of shape (rows, columns); it is not changed.
        coefficients: a, b and c.
        steps: how many, at least 1.
        eps: least norm that the matrix is divided by.

    Returns:
        A bfloat16 tensor of the same shape.

    Source: Jordan et al. (2024), "Muon: an optimizer for hidden layers in neural networks".
    """
    a, b, c = coefficients
    tall = matrix.shape[0] > matrix.shape[1]
    x: Tensor = matrix.bfloat16()
    x = x.T if tall else x
    x = x / x.norm().clamp(min=min(eps, LARGEST))
    for _ in range(steps):
        gram = x @ x.T
        x = x.addmm(gram.addmm(gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
