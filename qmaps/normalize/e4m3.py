"""Scales stored in e4m3, with a float32 scale of the tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from qmaps.normalize.base import Scales
from qmaps.normalize.scale_format import ScaleFormat
from qmaps.normalize.scale_kind import ScaleKind

LARGEST = 448.0
"""The largest number of e4m3."""
SMALLEST = 2.0**-9
NORMAL = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class TwoLevel(ScaleFormat, suffix="xe4m3"):
    """``inner`` with its scales in e4m3, as multiples of a float32 scale of the whole tensor.

    The second level is the tensor's largest scale divided by 448, and a scale is stored as the
    nearest number of e4m3 to its quotient by that; a tie goes to the even number. One that is not 0
    is at least 2**-9 of the second level. Elements above a scale rounded down take the
    codebook's end. Stored besides the codes: the second level, float32.

    ``B16xe4m3/e2m1@4s`` is NVFP4. Its second level is ``amax / (6 * 448)`` for elements up to 6,
    while here elements end at 1; so the stored numbers are the same but for float32 rounding.

    Source: NVIDIA, Pretraining large language models with NVFP4, 2025, section 2 and appendix C.
    """

    dtype: ClassVar[torch.dtype] = torch.uint8
    kind: ClassVar[ScaleKind | None] = ScaleKind.E4M3
    shared: ClassVar[int] = 1

    @property
    def clips(self) -> bool:
        return True

    def stored(self, parts: Sequence[Tensor], ends: Tensor) -> Scales:
        level = ends[1] / torch.full_like(ends[1], LARGEST)
        level = torch.where(ends[1] == 0, level, torch.clamp(level, min=NORMAL))
        codes = []
        for part in parts:
            quotient = torch.where(part == 0, part, part / level)
            bounded = torch.where(quotient > 0, quotient.clamp(SMALLEST, LARGEST), quotient)
            # Without the sign, which a NaN may have.
            codes.append(bounded.to(torch.float8_e4m3fn).view(torch.uint8) & 0x7F)
        return (*codes, level[None])

    def read(self, scales: Scales) -> Scales:
        *codes, level = scales
        positive = [(part & 0x7F).view(torch.float8_e4m3fn) for part in codes]
        return tuple(_times(part.float(), level[0]) for part in positive)


def _times(scale: Tensor, level: Tensor) -> Tensor:
    """Their product; the largest float32 where only rounding makes it infinite."""
    product = scale * level
    largest = torch.full_like(product, torch.finfo(torch.float32).max)
    return torch.where(product.isinf() & level.isfinite(), largest, product)
