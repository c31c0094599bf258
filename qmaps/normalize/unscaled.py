"""No normalization: the scale 1."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from qmaps.normalize.base import Scales, Shape, largest
from qmaps.normalize.geometry import Geometry, Part
from qmaps.normalize.scale_kind import ScaleKind
from qmaps.normalize.tensor import PerTensor


@dataclass(frozen=True)
class Unscaled(PerTensor, name="unscaled"):
    """The scale 1, whatever the tensor holds: elements above the codebook's end take that end.

    One float32 is stored for the whole tensor: 1; 0 if all elements are zeros; NaN if one of them
    is not finite, so that none becomes a finite number. It combines with no other normalizer.

    Under it the floating-point maps hold the values of their formats as they are:
    ``unscaled/bf16@16s``, or ``bf16`` for short, rounds to bfloat16.
    """

    @property
    def ones(self) -> bool:
        return True

    def geometry(self, shape: Shape) -> Geometry:
        return Geometry((Part(max(1, math.prod(shape)), 1, stored=ScaleKind.ONE),))

    def scales(self, x: Tensor) -> Scales:
        amax = largest(x)
        return (torch.where(amax.isfinite(), (amax > 0).float(), torch.nan),)
