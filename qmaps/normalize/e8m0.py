"""Scales that are powers of two, stored as their exponents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from qmaps.normalize.scale_format import FloatScales
from qmaps.normalize.scale_kind import ScaleKind

_EXPONENT = 23
"""The bit at which the exponent of a float32 begins."""
_LARGEST, _INFINITE = 254, 255


@dataclass(frozen=True)
class PowerOfTwo(FloatScales, suffix="xe8m0"):
    """``inner`` with each scale raised to the next power of two above it, stored as exponent.

    Code c, from 1 to 254, is the scale ``2**(c - 127)``; code 0 is the scale 0, and code 255
    infinity. Division by such a scale is exact. Scales below 2**-127 become 2**-126, and those of
    at least 2**127 become 2**127, so that elements above take the codebook's end.

    With the floating-point maps (``e2m1`` and so on) this is the rule of the OCP microscaling
    formats: the shared scale ``2**(floor(log2(amax)) - emax)`` and elements that saturate. Here
    the scale is ``2**(floor(log2(amax)) + 1)``, and such a map divides its values by
    ``2**(emax + 1)``. So a stored exponent is that of the specification plus ``emax + 1``, and
    decoded values are the same.

    Source: OCP microscaling formats specification, version 1.0, sections 5.4 and 6.3.
    """

    dtype: ClassVar[torch.dtype] = torch.uint8
    kind: ClassVar[ScaleKind | None] = ScaleKind.POWER_OF_TWO

    @property
    def powers_of_two(self) -> bool:
        return True

    def rounded(self, scale: Tensor) -> Tensor:
        bits = scale.contiguous().view(torch.int32) & 0x7FFFFFFF
        exponent = bits >> _EXPONENT
        code = torch.where(exponent == _INFINITE, exponent, (exponent + 1).clamp(max=_LARGEST))
        return torch.where(bits == 0, 0, code).to(torch.uint8)

    def widened(self, stored: Tensor) -> Tensor:
        return (stored.to(torch.int32) << _EXPONENT).view(torch.float32)
