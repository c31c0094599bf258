"""Bytes and bits as text: one unit for the same thing everywhere."""

from __future__ import annotations

import math

HALF = 1e-6
"""Added before rounding, so that 8.125 bits are 8.13 with and without a few more bytes."""


def size(nbytes: float) -> str:
    """Bytes in a suitable unit.

    >>> size(3_500_000), size(900), size(56e9)
    ('3.34 MiB', '900 bytes', '52.2 GiB')
    """
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.3g} {unit}"
    return f"{nbytes:.0f} bytes"


def bits(per_element: float) -> str:
    """Bits of an element, with two decimals.

    >>> bits(8.125), bits(8.1250001), bits(4.25)
    ('8.13', '8.13', '4.25')
    """
    return f"{per_element + HALF:.2f}"


def of_states(nbytes: float, nbytes_in_32_bits: float, numel: float) -> str:
    """The size of optimizer states in bits per state element, and in bytes per parameter.

    Args:
        nbytes: bytes of the states.
        nbytes_in_32_bits: bytes of the same states in 32 bits.
        numel: elements of the parameters.

    >>> of_states(8.125 * 2 / 8, 8, 1)
    '8.13 bits per state element, 2.03 bytes per parameter'
    """
    per_element = 32 * nbytes / nbytes_in_32_bits if nbytes_in_32_bits else math.nan
    per_parameter = nbytes / numel if numel else math.nan
    beside = f"{per_parameter + HALF:.2f} bytes per parameter"
    return f"{bits(per_element)} bits per state element, {beside}"
