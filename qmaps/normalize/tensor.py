"""One scale for the whole tensor."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from qmaps.normalize.base import Layout, Normalizer, Scales, Shape, largest
from qmaps.normalize.geometry import Extent, Geometry, Part


@dataclass(frozen=True)
class PerTensor(Normalizer, name="tensor"):
    """The largest magnitude of the tensor.

    Source: 8-bit approximations for parallelism, section 2.
    """

    @property
    def spec(self) -> str:
        return self.spec_name

    def layout(self, shape: Shape) -> Layout:
        return ((torch.float32, ()),)

    def geometry(self, shape: Shape) -> Geometry:
        return Geometry((Part(max(1, math.prod(shape)), 1),))

    def extents(self, dims: int) -> tuple[Extent, ...]:
        return (Extent(),)

    def scales(self, x: Tensor) -> Scales:
        return (largest(x),)

    def expand(self, scales: Scales, shape: Shape) -> Tensor:
        return scales[0]
