"""Sizes and widths that analyses, commands and pages share."""

from __future__ import annotations

import math

MIN_SIZE = 4096
"""Optimizers leave tensors of at most this many elements in 32 bits, so analyses do as well."""
BITS = 4.3
"""Bits per element if no budget is given."""
LIMITS = (2.3, 3.3, 4.3, 6.3, 8.3)
"""Bits per element, scales included, up to which the best single pair is named."""

FULL = "32-bit + 32-bit"
"""Name of the pair that quantizes nothing."""


def up_to(bits: float) -> float:
    """The first of `LIMITS` not below so many bits per state element, or infinity."""
    return next((limit for limit in LIMITS if bits <= limit), math.inf)
