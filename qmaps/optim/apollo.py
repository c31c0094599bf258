"""APOLLO: scaling a gradient as an adaptive rule scales its random projection."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from qmaps.algebra.philox import RoundingKey, normal
from qmaps.optim.factored import Shape, over
from qmaps.optim.reductions import norm

PURPOSE = 8
"""Of the random numbers; see `RoundingKey`."""

SCALE_TYPES = ("channel", "tensor")


@dataclass(frozen=True)
class Projection:
    """Projects a gradient to a low rank along the smaller of its two sides.

    A tensor of shape (n, ...) is read as a matrix of n rows. If the smaller side is below `rank`,
    the rank is that side.

    Attributes:
        shape: shape of the gradient, of at least two dimensions.
        rank: requested rank, at least 1.

    Source: Zhu et al. (2024), "APOLLO: SGD-like memory, AdamW-level performance", section 4.
    """

    shape: Shape
    rank: int

    @property
    def sides(self) -> tuple[int, int]:
        """Rows and columns of the gradient as a matrix."""
        return self.shape[0], math.prod(self.shape[1:])

    @property
    def from_right(self) -> bool:
        """True if columns are projected; rows are then the channels."""
        return self.sides[0] >= self.sides[1]

    @property
    def low_shape(self) -> tuple[int, int]:
        """The shape of a projected gradient."""
        rows, columns = self.sides
        rank = min(self.rank, rows, columns)
        return (rows, rank) if self.from_right else (rank, columns)

    def matrix(self, seed: int, draw: int, tensor: int, device: torch.device) -> Tensor:
        """Independent normal numbers of variance 1 / rank: (rank, smaller side), float32."""
        rank, side = min(self.low_shape), min(self.sides)
        key = RoundingKey(seed=seed, purpose=PURPOSE, step=draw, tensor=tensor)
        numbers = normal(rank * side, key, device).view(rank, side)
        return numbers * (1 / math.sqrt(max(rank, 1)))

    def project(self, grad: Tensor, matrix: Tensor) -> Tensor:
        """A float32 gradient of `shape` times the matrix."""
        whole = grad.reshape(self.sides)
        return whole @ matrix.t() if self.from_right else matrix @ whole

    def factor(self, adapted: Tensor, low: Tensor, scale_type: str) -> Tensor:
        """``norm(adapted) / norm(low)`` by channel or in all, to multiply a gradient with.

        It is 0 where the norm of the projected gradient `low` is 0, and 1 where it overflows. It
        broadcasts to `shape`, and is 0-d where there is one.
        """
        over_rank = (1,) if self.from_right else (0,)
        dims = over_rank if scale_type == "channel" else (0, 1)
        adapted_norm, low_norm = norm(adapted, dims), norm(low, dims)
        ratio = over(adapted_norm, low_norm)
        ratio = ratio.masked_fill(ratio.isinf(), 1)
        if ratio.numel() == 1:
            return ratio.reshape(())
        # Columns of the matrix are whatever comes after a tensor's first dimension.
        dims_left = [1] * (len(self.shape) - 1)
        if self.from_right:
            return ratio.reshape(self.shape[0], *dims_left)
        return ratio.reshape(1, *self.shape[1:])
