"""The minimum of the maxima along every dimension."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import torch
from torch import Tensor

from qmaps.normalize.base import Layout, Normalizer, Scales, Shape, largest
from qmaps.normalize.block import FLAT
from qmaps.normalize.geometry import Extent, Geometry, slice_part


@dataclass(frozen=True)
class Rank1(Normalizer, name="rank1"):
    """For two dimensions ``scale[i, j] = min(max_j |x[i, j]|, max_i |x[i, j]|)``.

    For any number of dimensions, the minimum over them of the largest magnitude of the slice
    that an element lies in. An outlier row or column raises no scale but its own. 0-d and
    1-D tensors: ``B128``.

    Source: 4-bit optimizers, section 4.2 and appendix E.2 (algorithm 4).
    """

    aliases: ClassVar[tuple[str, ...]] = ("rank-1",)

    @property
    def spec(self) -> str:
        return "rank1"

    def layout(self, shape: Shape) -> Layout:
        if len(shape) < 2:
            return FLAT.layout(shape)
        return tuple((torch.float32, (size,)) for size in shape)

    def geometry(self, shape: Shape) -> Geometry:
        if len(shape) < 2:
            return FLAT.geometry(shape)
        parts = tuple(slice_part(shape, axis, array=axis) for axis in range(len(shape)))
        return Geometry(parts, arrays=len(parts))

    def extents(self, dims: int) -> tuple[Extent, ...]:
        return FLAT.extents(dims) if dims < 2 else tuple(Extent(axes=(d,)) for d in range(dims))

    def scales(self, x: Tensor) -> Scales:
        if x.dim() < 2:
            return FLAT.scales(x)
        reduced = ([d for d in range(x.dim()) if d != axis] for axis in range(x.dim()))
        return tuple(largest(x, dims) for dims in reduced)

    def expand(self, scales: Scales, shape: Shape) -> Tensor:
        if len(shape) < 2:
            return FLAT.expand(scales, shape)
        views = (
            part.view([-1 if d == axis else 1 for d in range(len(shape))])
            for axis, part in enumerate(scales)
        )
        return reduce(torch.minimum, views)
