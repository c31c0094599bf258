"""Scales stored in float16."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from qmaps.normalize.scale_format import FloatScales
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
