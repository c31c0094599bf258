"""Scales stored in bfloat16."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from qmaps.normalize.scale_format import FloatScales
from qmaps.normalize.scale_kind import ScaleKind


@dataclass(frozen=True)
class BFloat16(FloatScales, suffix="xbf16"):
    """``inner`` with its scales in bfloat16, rounded to nearest, a tie going to the even number.

    Elements above a scale rounded down take the codebook's end. The smallest scale is
    2**-133, below half of which 0 is stored; float32's largest numbers become the largest of
    bfloat16.
    """

    dtype: ClassVar[torch.dtype] = torch.bfloat16
    kind: ClassVar[ScaleKind | None] = ScaleKind.BFLOAT16
