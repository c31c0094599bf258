"""Scales rounded to small floating-point formats, each by itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from qmaps.normalize.base import Scales, Shape
from qmaps.normalize.geometry import Geometry
from qmaps.normalize.scale_format import ScaleFormat
from qmaps.normalize.scale_kind import ScaleKind


@dataclass(frozen=True)
class FloatScales(ScaleFormat):
    """A format with independent scales."""

    kind: ClassVar[ScaleKind | None] = None
    """How engines are told; None leaves it to the reference."""

    def geometry(self, shape: Shape) -> Geometry | None:
        inner = self.inner.geometry(shape)
        if inner is None or self.kind is None:
            return None
        return replace(inner, parts=tuple(replace(p, stored=self.kind) for p in inner.parts))

    @property
    def clips(self) -> bool:
        return not self.powers_of_two or self.inner.clips

    def stored(self, parts: Sequence[Tensor], ends: Tensor) -> Scales:
        return tuple(self.rounded(part) for part in parts)

    def read(self, scales: Scales) -> Scales:
        return tuple(self.widened(part) for part in scales)

    @abstractmethod
    def rounded(self, scale: Tensor) -> Tensor:
        """Non-negative float32 scales as `dtype`."""

    @abstractmethod
    def widened(self, stored: Tensor) -> Tensor:
        """The float32 values of stored scales."""


def nearest_float(scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The nearest number of a floating-point dtype, a tie going to the even one.

    A finite scale stays finite: it becomes at most the largest number of the dtype. A nonzero scale
    becomes at least the smallest number.

    Args:
        scale: float32 of any shape, not negative.
        dtype: float16 or bfloat16.
    """
    info = torch.finfo(dtype)
    floor = torch.where(scale > 0, info.smallest_normal * info.eps, 0.0)
    bounded = torch.where(scale.isfinite(), scale.clamp(max=info.max), scale)
    return torch.maximum(bounded, floor).to(dtype)
