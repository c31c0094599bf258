"""Scales rounded to small floating-point formats, each by itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qmaps.normalize.base import Scales
from qmaps.normalize.scale_format import ScaleFormat


@dataclass(frozen=True)
class FloatScales(ScaleFormat):
    """A format whose scales do not depend on each other."""

    @property
    def clips(self) -> bool:
        return not self.powers_of_two

    def stored(self, parts: Sequence[Tensor], ends: Tensor) -> Scales:
        return tuple(self.rounded(part) for part in parts)

    def read(self, scales: Scales) -> Scales:
        return tuple(self.widened(part) for part in scales)

    @abstractmethod
    def rounded(self, scale: Tensor) -> Tensor:
        """Float32 scales, which are not negative, as `dtype`."""

    @abstractmethod
    def widened(self, stored: Tensor) -> Tensor:
        """The float32 scales that stored ones stand for."""


def nearest_float(scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The nearest number of a floating-point dtype, a tie going to the even one.

    A finite scale stays finite: it becomes at most the largest number of the dtype. One that is not
    0 stays so: it becomes at least the smallest number.

    Args:
        scale: float32 of any shape, not negative.
        dtype: float16 or bfloat16.
    """
    info = torch.finfo(dtype)
    least = torch.where(scale > 0, info.smallest_normal * info.eps, 0.0)
    bounded = torch.where(scale.isfinite(), scale.clamp(max=info.max), scale)
    return torch.maximum(bounded, least).to(dtype)
