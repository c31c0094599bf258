"""The quantizers that a sweep tries by default."""

from __future__ import annotations

EIGHT_BIT_MAPS = ("DE", "inverse", "quantile", "linear0", "linear", "tree", "e4m3", "power2")
"""Maps for both moments at 8 bits; the first four are those of the 8-bit paper."""

SECOND_AT_FOUR_BITS = ("DE", "DE-0", "linear", "power2", "quantile")


def standard() -> list[str]:
    """Pairs for Adam's moments: the papers' own and similar ones at every width.

    - 8 bits: eight maps per tensor and under blocks of 2048 and 256,
    - only one moment quantized, the other exact, to see where an error comes from,
    - 4 bits: the second moment under five maps and five normalizers beside ``B128/DE@4s``, and
      the first moment's alternatives beside ``rank1/linear@4u``,
    - Lloyd-Max at 3, 4, 6 and 8 bits, with the maps to compare it with.
    """
    pairs = [
        f"{norm}/{name}@8s + {norm}/{name}@8u"
        for norm in ("tensor", "B2048", "B256")
        for name in EIGHT_BIT_MAPS
    ]
    pairs += ["B256/DE@8s + B256/DE-0@8u", "B256/DE@8s + logB256/log2@8u"]
    pairs += [f"tensor/{name}@8s + 32-bit" for name in ("DE", "inverse", "quantile", "linear0")]
    pairs += [
        "B128/DE@4s + 32-bit",
        "32-bit + B128/DE@4u",
        "32-bit + B128/DE-0@4u",
        "32-bit + rank1/linear@4u",
    ]
    pairs += [
        f"B128/DE@4s + {norm}/{name}@4u"
        for norm in ("tensor", "B2048", "B128", "B32x8", "rank1")
        for name in SECOND_AT_FOUR_BITS
    ]
    pairs += [
        f"{first} + rank1/linear@4u"
        for first in ("B2048/DE@4s", "B32x8/DE@4s", "B128/linear@4s", "B128/nf4@4s", "rank1/DE@4s")
    ]
    pairs += ["B128/DE@4s + logB128/log2@4u", "B128/DE@4s + B128&rank1/linear@4u"]
    for bits in (3, 4, 6):
        pairs += [
            f"B128/{name}@{bits}s + B128/{second}@{bits}u"
            for name, second in (("DE", "DE-0"), ("linear", "linear"), ("lloyd", "lloyd"))
        ]
    pairs += ["B128/DE@8s + B128/DE-0@8u", "B128/lloyd@8s + B128/lloyd@8u"]
    return list(dict.fromkeys(pairs))


STANDARD: tuple[str, ...] = tuple(standard())
"""The pairs of `standard`."""
