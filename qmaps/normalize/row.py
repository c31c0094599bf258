"""One scale per row, or per index of another dimension."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from qmaps.normalize.base import Layout, Normalizer, Scales, Shape, largest
from qmaps.normalize.block import FLAT
from qmaps.normalize.geometry import Extent, Geometry, slice_part


@dataclass(frozen=True)
class Slices(Normalizer):
    """The largest magnitude of each slice along one dimension; 0-d and 1-D: ``B128``."""

    @property
    def spec(self) -> str:
        return self.spec_name

    @abstractmethod
    def dimension(self, dims: int) -> int:
        """The dimension, of `dims`, with a scale for each index."""

    def layout(self, shape: Shape) -> Layout:
        if len(shape) < 2:
            return FLAT.layout(shape)
        return ((torch.float32, (shape[self.dimension(len(shape))],)),)

    def geometry(self, shape: Shape) -> Geometry:
        if len(shape) < 2:
            return FLAT.geometry(shape)
        axis = self.dimension(len(shape))
        return Geometry((slice_part(shape, axis),))

    def extents(self, dims: int) -> tuple[Extent, ...]:
        return FLAT.extents(dims) if dims < 2 else (Extent(axes=(self.dimension(dims),)),)

    def scales(self, x: Tensor) -> Scales:
        if x.dim() < 2:
            return FLAT.scales(x)
        axis = self.dimension(x.dim())
        return (largest(x, [d for d in range(x.dim()) if d != axis]),)

    def expand(self, scales: Scales, shape: Shape) -> Tensor:
        if len(shape) < 2:
            return FLAT.expand(scales, shape)
        axis = self.dimension(len(shape))
        return scales[0].view([-1 if d == axis else 1 for d in range(len(shape))])


@dataclass(frozen=True)
class PerRow(Slices, name="row"):
    """The largest magnitude of each ``x[i]``, over all other dimensions; 1-D: ``B128``.

    Source: 4-bit optimizers, section 3 ("per-row").
    """

    def dimension(self, dims: int) -> int:
        return 0
