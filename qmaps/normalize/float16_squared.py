"""Scales stored as their square roots in float16."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from qmaps.float32 import sqrt
from qmaps.normalize.scale_format import FloatScales, nearest_float
from qmaps.normalize.scale_kind import ScaleKind


@dataclass(frozen=True)
class Float16Squared(FloatScales, suffix="xf16sq"):
    """``inner`` with the square roots of its scales in float16.

    A square root is rounded to nearest twice, to float32 and then to float16.

    A scale is the square of the stored number, which is exact in float32: from 2**-48 to 4.29e9. So
    it suits second moments, whose square roots are as large as first moments. A tie goes to the
    even number; elements above a scale rounded down take the codebook's end.

    Source: FlashOptim, released code (package flashoptim 0.1.4), of second moments: their square
    roots have a scale, and are squared when they are decoded.
    """

    dtype: ClassVar[torch.dtype] = torch.float16
    kind: ClassVar[ScaleKind | None] = ScaleKind.FLOAT16_SQUARED

    def rounded(self, scale: Tensor) -> Tensor:
        return nearest_float(sqrt(scale), self.dtype)

    def widened(self, stored: Tensor) -> Tensor:
        return stored.float() * stored.float()
