"""One scale per row, or per index of other dimensions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from qmaps.normalize.base import Layout, Normalizer, Scales, Shape, largest
from qmaps.normalize.block import FLAT
from qmaps.normalize.geometry import Extent, Geometry, slice_part


@dataclass(frozen=True)
class Slices(Normalizer):
    """The smallest of the largest magnitudes of an element's slices; 0-d and 1-D: ``B128``."""

    @property
    def spec(self) -> str:
        return self.spec_name

    @abstractmethod
    def dimensions(self, dims: int) -> Sequence[int]:
        """The dimensions, of `dims`, with a scale for each index."""

    def layout(self, shape: Shape) -> Layout:
        if len(shape) < 2:
            return FLAT.layout(shape)
        return tuple((torch.float32, (shape[axis],)) for axis in self.dimensions(len(shape)))

    def geometry(self, shape: Shape) -> Geometry:
        if len(shape) < 2:
            return FLAT.geometry(shape)
        axes = self.dimensions(len(shape))
        parts = tuple(slice_part(shape, axis, array=array) for array, axis in enumerate(axes))
        return Geometry(parts, arrays=len(parts))

    def extents(self, dims: int) -> tuple[Extent, ...]:
        if dims < 2:
            return FLAT.extents(dims)
        return tuple(Extent(axes=(axis,)) for axis in self.dimensions(dims))

    def scales(self, x: Tensor) -> Scales:
        if x.dim() < 2:
            return FLAT.scales(x)
        axes = self.dimensions(x.dim())
        return tuple(largest(x, [d for d in range(x.dim()) if d != axis]) for axis in axes)

    def expand(self, scales: Scales, shape: Shape) -> Tensor:
        if len(shape) < 2:
            return FLAT.expand(scales, shape)
        views = (
            part.view([-1 if d == axis else 1 for d in range(len(shape))])
            for axis, part in zip(self.dimensions(len(shape)), scales, strict=True)
        )
        return reduce(torch.minimum, views)


@dataclass(frozen=True)
class PerRow(Slices, name="row"):
    """The largest magnitude of each ``x[i]``, over all other dimensions; 1-D: ``B128``.

    Source: 4-bit optimizers, section 3 ("per-row").
    """

    def dimensions(self, dims: int) -> Sequence[int]:
        return (0,)
