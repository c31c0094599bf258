"""The minimum of the row's and the column's maximum within each tile of a matrix."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import torch
from torch import Tensor

from qmaps.normalize.base import Layout, Normalizer, Scales, Shape
from qmaps.normalize.block import FLAT, check_block_size


@dataclass(frozen=True)
class Rank1Tiles(Normalizer, name="rank1B<n>x<n>"):
    """`rank1` of each tile of `rows` by `columns` elements: an outlier raises scales of its tile.

    The first dimension is the rows, and all others together are the columns. The last tiles are
    ragged where the sizes do not divide those of the tensor. 0-d and 1-D tensors: ``B128``.

    Two lists of scales are stored: the largest magnitude of each row of each tile, of shape
    (rows, tiles in a row), and that of each column of each tile, of shape (tiles in a column,
    columns).

    Attributes:
        rows: of a tile.
        columns: of a tile.
    """

    rows: int
    columns: int

    def __post_init__(self) -> None:
        check_block_size(self.rows)
        check_block_size(self.columns)

    @classmethod
    def parse(cls, text: str) -> Normalizer | None:
        match = re.fullmatch(r"rank-?1b(\d+)x(\d+)", text, re.IGNORECASE | re.ASCII)
        return cls(int(match[1]), int(match[2])) if match else None

    @property
    def spec(self) -> str:
        return f"rank1B{self.rows}x{self.columns}"

    def layout(self, shape: Shape) -> Layout:
        if len(shape) < 2:
            return FLAT.layout(shape)
        rows, columns = _matrix(shape)
        across, down = -(-columns // self.columns), -(-rows // self.rows)
        return ((torch.float32, (rows, across)), (torch.float32, (down, columns)))

    def scales(self, x: Tensor) -> Scales:
        if x.dim() < 2:
            return FLAT.scales(x)
        matrix = x.abs().reshape(_matrix(tuple(x.shape)))
        return _maxima(matrix, self.columns), _maxima(matrix.t(), self.rows).t().contiguous()

    def expand(self, scales: Scales, shape: Shape) -> Tensor:
        if len(shape) < 2:
            return FLAT.expand(scales, shape)
        rows, columns = _matrix(shape)
        by_row = _repeated(scales[0], self.columns, columns)
        by_column = _repeated(scales[1].t(), self.rows, rows).t()
        return torch.minimum(by_row, by_column).reshape(shape)


def _matrix(shape: Shape) -> tuple[int, int]:
    return shape[0], math.prod(shape[1:])


def _maxima(matrix: Tensor, size: int) -> Tensor:
    """The largest of each `size` consecutive elements of each row, the last ones ragged."""
    rows, columns = matrix.shape
    if rows == 0 or columns == 0:
        return matrix.new_zeros(rows, -(-columns // size))
    size = min(size, columns)
    filled = torch.nn.functional.pad(matrix, (0, -columns % size))
    return filled.reshape(rows, -1, size).amax(dim=2)


def _repeated(maxima: Tensor, size: int, columns: int) -> Tensor:
    """Each maximum, repeated for its elements."""
    size = min(size, max(1, columns))
    return maxima.repeat_interleave(size, dim=1)[:, :columns]
