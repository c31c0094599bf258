"""Scales stored in float16."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from qmaps.normalize.scale_format import FloatScales, nearest_float
from qmaps.normalize.scale_kind import ScaleKind


@dataclass(frozen=True)
class Float16(FloatScales, suffix="xf16"):
    """``inner`` with its scales in float16, rounded to nearest, a tie going to the even number.

    Elements above a scale rounded down take the codebook's end. A scale above 65504 is
    stored as 65504, and a nonzero one below 2**-24 as 2**-24. So second moments, often
    smaller, need ``xf16sq``.

    Source: FlashOptim, released code (package flashoptim 0.1.4), of first moments. There a code is
    that of the element divided by the scale before it is rounded; here by the stored one, with
    which it is decoded.
    """

    dtype: ClassVar[torch.dtype] = torch.float16
    kind: ClassVar[ScaleKind | None] = ScaleKind.FLOAT16

    def rounded(self, scale: Tensor) -> Tensor:
        return nearest_float(scale, self.dtype)

    def widened(self, stored: Tensor) -> Tensor:
        return stored.float()
