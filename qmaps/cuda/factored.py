"""States with fewer elements than their parameter, on the CUDA engine."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from qmaps.cuda import layout
from qmaps.cuda.tensors import ScaleLayout
from qmaps.engines.addresses import address
from qmaps.normalize.geometry import Geometry, slice_part

Items = list[tuple[int, int]]
"""Pairs of a parameter and a tile; see ``src/factored.cuh``."""


class Statistics:
    """Statistics of rows and columns: their addresses, and memory for factors and sums.

    The memory is 4 bytes for each row and each column of each matrix. Matrices of more than 64 rows
    or 512 columns take 8 more bytes for every 512 elements of a row and every 64 of a column.
    """

    def __init__(self) -> None:
        self._sizes = {torch.float32: 0, torch.float64: 0}
        self._places: list[tuple[np.ndarray, str, torch.dtype, int]] = []
        self._memory: dict[torch.dtype, Tensor] = {}

    def add(self, row: np.ndarray, shape: tuple[int, ...], states: list[Tensor]) -> None:
        """Describe float32 statistics of the rows, then of the columns, of a parameter's matrices.

        `row`, the ``FactoredStates`` of the parameter, is changed in place, also by `place`.
        """
        matrices, rows, columns = _matrices(shape)
        row["rows"], row["columns"] = rows, columns
        for part, state in zip(row["slices"]["part"], states, strict=False):
            part["values"] = address(state)
        down, across = _chunks(rows, columns)
        parted = matrices if down * across > 1 else 0
        self._reserve(row, "row_factor", torch.float32, matrices * rows)
        self._reserve(row, "column_factor", torch.float32, matrices * columns)
        self._reserve(row, "row_sums", torch.float64, parted * rows * across)
        self._reserve(row, "column_sums", torch.float64, parted * columns * down)

    def _reserve(self, row: np.ndarray, name: str, dtype: torch.dtype, count: int) -> None:
        self._places.append((row, name, dtype, self._sizes[dtype]))
        self._sizes[dtype] += count

    def place(self, device: torch.device) -> None:
        """Allocate the memory on `device`, and write its addresses to all rows."""
        for dtype, size in self._sizes.items():
            self._memory[dtype] = torch.zeros(max(size, 1), dtype=dtype, device=device)
        for row, name, dtype, at in self._places:
            row[name] = address(self._memory[dtype]) + dtype.itemsize * at


def work_of(members: list[int], shapes: list[tuple[int, ...]]) -> tuple[Items, Items]:
    """The work of `factored_sums` and of `finish_factored` for parameters."""
    tiles: Items = []
    finishing: Items = []
    for index, shape in zip(members, shapes, strict=True):
        matrices, rows, columns = _matrices(shape)
        down, across = _chunks(rows, columns)
        tiles += [(index, tile) for tile in range(matrices * down * across)]
        if down * across > 1:
            strips = -(-matrices * columns // layout.THREADS)
            finishing += [(index, place) for place in range(-strips, matrices)]
    return tiles, finishing


def slices(shape: tuple[int, ...]) -> ScaleLayout:
    """The layout of maxima over the slices of every dimension, treated as scales by kernels."""
    shape = shape or (1,)
    parts = [slice_part(shape, dim, dim) for dim in range(len(shape))]
    return ScaleLayout(Geometry(tuple(parts), len(parts)), 0)


def _matrices(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Number of matrices, and the rows and columns of each."""
    *outer, rows, columns = shape
    return torch.Size(outer).numel(), rows, columns


def _chunks(rows: int, columns: int) -> tuple[int, int]:
    """Tiles down and across a matrix."""
    return -(-rows // layout.COLUMN_CHUNK), -(-columns // layout.ROW_CHUNK)
