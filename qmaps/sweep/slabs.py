"""One state of a parameter, of which some rows are in memory at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qmaps.capture.snapshot import Lazy, Part
from qmaps.normalize.base import Minimum, Normalizer, Scales
from qmaps.normalize.scale_format import ScaleFormat

SLAB = 2**20
"""Elements of a slab, about, unless a unit has more."""


@dataclass(frozen=True)
class Signs:
    """Squares and signs of the elements of a state.

    Attributes:
        mean_square: mean of the squared elements.
        negative: number of negative elements.
        first_negative: flat index of the first one; -1 if there is none.
    """

    mean_square: float
    negative: int
    first_negative: int


@dataclass(frozen=True)
class Slabs:
    """A state that is read in slabs: consecutive rows that are whole units.

    Attributes:
        shape: its shape, of at least one dimension.
        read: reads its elements from one flat index up to another.
    """

    shape: tuple[int, ...]
    read: Part

    @classmethod
    def of(cls, tensor: Tensor) -> Slabs:
        """A tensor that is in memory."""
        return cls(tuple(tensor.shape), Lazy.of(tensor).opened())

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def slabs(self, unit: int) -> Iterator[Tensor]:
        """Yield all slabs, float32 of shape (rows, *shape[1:]).

        Args:
            unit: number of elements that a slab is a multiple of, but for the last one; whole rows.
        """
        step = unit * max(1, SLAB // unit)
        for begin in range(0, self.numel, step):
            yield self._rows(begin, begin + step)

    def chosen(self, numbers: NDArray[np.int64], unit: int) -> Tensor:
        """The rows of some units, float32 of shape (rows, *shape[1:])."""
        return torch.cat([self._rows(int(n) * unit, (int(n) + 1) * unit) for n in numbers])

    def _rows(self, begin: int, end: int) -> Tensor:
        return self.read(begin, min(end, self.numel)).view(-1, *self.shape[1:])

    def signs(self) -> Signs:
        """Read all elements once for `Signs`."""
        square, negative, first, begin = 0.0, 0, -1, 0
        for x in self.slabs(math.prod(self.shape[1:])):
            square += float(np.square(x.numpy().ravel(), dtype=np.float64).sum())
            below = x.reshape(-1) < 0
            if count := int(below.sum()):
                first = begin + int(below.int().argmax()) if first < 0 else first
                negative += count
            begin += x.numel()
        return Signs(square / self.numel, negative, first)

    def surveyed(self, unit: int, scalers: Sequence[Scaler] = ()) -> NDArray[np.float64]:
        """Read all elements once: the sum of squares of each unit.

        Args:
            unit: elements of a unit: whole rows, and whole blocks of every normalizer.
            scalers: objects that look at each slab.
        """
        squares = []
        for x in self.slabs(unit):
            squares.append(per_unit(x.double().square(), unit))
            for scaler in scalers:
                scaler.look(x)
        return np.concatenate(squares)


class Scaler:
    """Computes the scales of some rows that a normalizer computes from the whole state.

    Scales of blocks and of rows are those of the rows themselves. Those of the tensor and of other
    slices are maxima over all slabs, and so are the ends of grids of scales.

    Args:
        normalizer: it says what its scales span.
        dims: number of dimensions of the state.
    """

    def __init__(self, normalizer: Normalizer, dims: int) -> None:
        self._parts: list[Scaler] = []
        if isinstance(normalizer, Minimum):
            self._parts = [Scaler(part, dims) for part in normalizer.parts]
            return
        self._format = normalizer if isinstance(normalizer, ScaleFormat) else None
        self._inner = normalizer if self._format is None else self._format.inner
        extents = self._inner.extents(dims) or ()
        self._local = [bool(extent.block) or 0 in extent.axes for extent in extents]
        self._maxima: list[Tensor] = []
        self._ends: list[Tensor] = []

    def look(self, x: Tensor) -> None:
        """Look at the next slab."""
        if self._parts:
            for part in self._parts:
                part.look(x)
            return
        local, spanning = self._divided(self._inner.scales(x))
        pairs = zip(self._maxima, spanning, strict=True) if self._maxima else ()
        self._maxima = [torch.maximum(*pair) for pair in pairs] or spanning
        if self._format is not None and local:
            self._ends.append(self._format.ends(local))

    def scales(self, x: Tensor) -> Scales:
        """The scales of whole rows and whole blocks, after the last slab."""
        if self._parts:
            return tuple(scale for part in self._parts for scale in part.scales(x))
        maxima = iter(self._maxima)
        own = self._inner.scales(x)
        parts = [
            part if local else next(maxima) for part, local in zip(own, self._local, strict=True)
        ]
        if self._format is None:
            return tuple(parts)
        ends = [*self._ends, *([self._format.ends(self._maxima)] if self._maxima else ())]
        return self._format.stored(parts, self._format.ends(ends))

    def _divided(self, scales: Scales) -> tuple[list[Tensor], list[Tensor]]:
        """Scales of blocks and rows, and the others."""
        both = list(zip(scales, self._local, strict=True))
        return [s for s, local in both if local], [s for s, local in both if not local]


def per_unit(values: Tensor, size: int) -> NDArray[np.float64]:
    """The sum of each `size` consecutive elements, float64; the last may be of fewer."""
    flat = values.reshape(-1)
    padded = torch.nn.functional.pad(flat, (0, -flat.numel() % size))
    found: NDArray[np.float64] = padded.view(-1, size).numpy().sum(axis=1)
    return found
