"""States with fewer elements than their parameter, on the CUDA engine."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from qmaps.cuda import layout
from qmaps.cuda.tensors import ScaleLayout
from qmaps.engines.addresses import address
from qmaps.normalize.geometry import Geometry, slice_part

Item = tuple[int, int]


@dataclass
class Work:
    """The work items of one batch: pairs of a parameter and a tile; see ``src/factored.cuh``.

    Attributes:
        tiles: items of the kernel `factored_sums`.
        finishing: items of the kernel `finish_factored`.
    """

    tiles: list[Item] = field(default_factory=list)
    finishing: list[Item] = field(default_factory=list)


class Statistics:
    """Statistics of rows and columns: their addresses, and memory for factors and sums.

    The memory is 4 bytes for each row and each column of each matrix. Matrices of more than 64 rows
    or 512 columns take 8 more bytes for every 512 elements of a row and every 64 of a column.
    """

    def __init__(self) -> None:
        self._floats = self._doubles = 0
        self._places: list[tuple[np.ndarray, dict[str, int], dict[str, int]]] = []
        self._memory: list[Tensor] = []

    def add(self, row: np.ndarray, shape: tuple[int, ...], states: list[Tensor]) -> None:
        """Describe a parameter's statistics; the addresses of memory are set by `place`.

        Args:
            row: the ``FactoredStates`` of the parameter, changed in place, also by `place`.
            shape: the shape of the parameter, of at least two dimensions. The last two are those
                of its matrices.
            states: float32 statistics of all rows, then those of all columns.
        """
        matrices, rows, columns = _matrices(shape)
        row["rows"], row["columns"] = rows, columns
        for part, state in zip(row["slices"]["part"], states, strict=False):
            part["values"] = address(state)
        floats = {"row_factor": self._floats}
        floats["column_factor"] = self._floats + matrices * rows
        self._floats += matrices * (rows + columns)
        down, across = _chunks(rows, columns)
        doubles = {"row_sums": self._doubles}
        doubles["column_sums"] = self._doubles + matrices * rows * across
        if down * across > 1:
            self._doubles += matrices * (rows * across + columns * down)
        self._places.append((row, floats, doubles))

    def place(self, device: torch.device) -> None:
        """Allocate the memory on `device`, and write its addresses to all rows."""
        for count, dtype, which in (
            (self._floats, torch.float32, 1),
            (self._doubles, torch.float64, 2),
        ):
            memory = torch.zeros(max(count, 1), dtype=dtype, device=device)
            self._memory.append(memory)
            for place in self._places:
                for name, at in dict(place[which]).items():
                    place[0][name] = address(memory) + memory.element_size() * at


def work_of(members: list[int], shapes: list[tuple[int, ...]]) -> Work:
    """The work items for parameters."""
    made = Work()
    for index, shape in zip(members, shapes, strict=True):
        matrices, rows, columns = _matrices(shape)
        down, across = _chunks(rows, columns)
        made.tiles += [(index, tile) for tile in range(matrices * down * across)]
        if down * across > 1:
            strips = -(-matrices * columns // layout.THREADS)
            made.finishing += [(index, matrix) for matrix in range(matrices)]
            made.finishing += [(index, -1 - strip) for strip in range(strips)]
    return made


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
