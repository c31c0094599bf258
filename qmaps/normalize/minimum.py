"""The element-wise minimum of several normalizers' scales."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from qmaps.normalize.base import Layout, Made, Normalizer, Scales, Shape, refuse_combined
from qmaps.normalize.extent import Extent
from qmaps.normalize.geometry import Geometry
from qmaps.normalize.geometry import Part as GeometryPart


@dataclass(frozen=True, init=False)
class Minimum(Normalizer):
    """``A & B``: each element is divided by the smaller of its scales under A and under B.

    Both bound the element's magnitude, so nothing clips. All scales are stored.

    Source: 4-bit optimizers, section 4.2 (rank-1).
    """

    parts: tuple[Normalizer, ...]

    def __init__(self, *parts: Normalizer) -> None:
        refuse_combined(parts, "'&'")
        flat = [p for part in parts for p in (part.parts if isinstance(part, Minimum) else (part,))]
        object.__setattr__(self, "parts", tuple(flat))  # the way a frozen dataclass does it

    @property
    def spec(self) -> str:
        return "&".join(part.spec for part in self.parts)

    def layout(self, shape: Shape) -> Layout:
        return tuple(entry for part in self.parts for entry in part.layout(shape))

    def geometry(self, shape: Shape) -> Geometry | None:
        joined: tuple[GeometryPart, ...] = ()
        arrays = 0
        for part in self.parts:
            if (part_geometry := part.geometry(shape)) is None:
                return None
            joined += part_geometry.shifted(arrays)
            arrays += part_geometry.arrays
        return Geometry(joined, arrays)

    @property
    def clips(self) -> bool:
        return any(part.clips for part in self.parts)

    @property
    def powers_of_two(self) -> bool:
        return all(part.powers_of_two for part in self.parts)

    def extents(self, dims: int) -> tuple[Extent, ...] | None:
        all_extents = [part.extents(dims) for part in self.parts]
        if any(extents_of is None for extents_of in all_extents):
            return None
        return tuple(extent for extents_of in all_extents for extent in extents_of or ())

    def scales(self, x: Tensor) -> Scales:
        return tuple(scale for part in self.parts for scale in part.scales(x))

    def expand(self, scales: Scales, shape: Shape) -> Tensor:
        expanded = []
        for part in self.parts:
            count = len(part.layout(shape))
            expanded.append(part.expand(scales[:count], shape))
            scales = scales[count:]
        return reduce(torch.minimum, expanded)


Made.minimum = Minimum
