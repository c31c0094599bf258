"""Second moments as statistics of rows and columns: Adafactor's factorization.

Of a tensor with more than two dimensions the last two are rows and columns, each matrix by itself,
as in the code of the Adafactor and 4-bit papers. Statistics keep the dimension over which they
are means, with size 1.

Source: Shazeer and Stern (2018), "Adafactor", section 3; 4-bit optimizers, section 4.3.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qmaps.optim.reductions import column_means, row_means
from qmaps.optim.rule import Dims, every

Shape = tuple[int, ...]


def factors(shape: Shape) -> bool:
    """Return True if a tensor of this shape has rows and columns."""
    return len(shape) >= 2


def row_shape(shape: Shape) -> Shape:
    """The shape of the statistics of rows."""
    return (*shape[:-1], 1)


def col_shape(shape: Shape) -> Shape:
    """The shape of the statistics of columns."""
    return (*shape[:-2], 1, shape[-1])


def row_dims(dims: int) -> Dims:
    """The dimensions that the statistics of rows follow; see `qmaps.optim.rule.State`."""
    return (*every(dims)[:-1], None)


def col_dims(dims: int) -> Dims:
    """The dimensions that the statistics of columns follow; see `qmaps.optim.rule.State`."""
    return (*every(dims)[:-2], None, dims - 1)


def average(row: Tensor, col: Tensor, square: Tensor, kept: float, rest: float) -> None:
    """Update the running means of rows and columns with new squares.

    ``row = kept * row + rest * mean(square over each row)``, and `col` likewise.

    Args:
        row: float32 of `row_shape`, changed in place.
        col: float32 of `col_shape`, changed in place.
        square: float32 of shape (..., rows, columns).
        kept: weight of the old statistics.
        rest: weight of the new means.
    """
    row.mul_(kept).add_(row_means(square) * rest)
    col.mul_(kept).add_(column_means(square) * rest)


def relative_rows(row: Tensor) -> Tensor:
    """``row / mean(row)``, 0 where the mean is 0: times `col` it is the second moment."""
    whole = row_means(row.transpose(-1, -2), -2)
    return row / torch.where(whole == 0, torch.ones_like(whole), whole)
