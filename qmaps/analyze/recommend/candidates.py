"""The default pairs of quantizers of a recommendation."""

from __future__ import annotations

import math

from qmaps.algebra.pair import Pair
from qmaps.maps.lloyd import LloydMax
from qmaps.optim.presets import PRESETS as OPTIMIZER_PRESETS
from qmaps.optim.presets import pair_of

LIMITS = (2.3, 3.3, 4.3, 6.3, 8.3)
"""Bits per element, scales included, up to which the best single pair is named."""

FULL = Pair(None, None)

PRESETS = {pair_of(name).spec: name for name in OPTIMIZER_PRESETS if name != "32bit"}
"""Names of the presets of `qmaps.optim` by the pair that Adam gets from them."""

CANDIDATES = (
    *PRESETS,
    "B32x8/quantile-normal@2s+sr + B128/power3@2u",
    "B64x8/quantile-normal@3s+sr + B32x8/power3@2u",
    "B32x8/quantile-normal@2s+sr + B128/DE-0@3u",
    "B32x8/quantile-normal@3s+sr + B128/DE-0@3u",
    "B128/linear0@3s+sr + B128/power2@3u",
    "B128/DE-sym@3s+sr + B128/DE-0@4u",
    "B128/DE-sym@4s+sr + B128/DE-0@3u",
    "B128/nf4@4s+sr + B128/DE-0@4u",
    "B128/DE-sym@4s+sr + B128/linear@4u",
    "B128/nf4@4s+sr + B128/linear@4u+sr",
    "B128/DE-sym@5s+sr + B128/DE-0@5u",
    "B128/DE-sym@4s+sr + B256/DE-0@8u",
    "B256/DE-sym@8s + B128/DE-0@4u",
    "B128/DE-sym@6s + B128/DE-0@6u",
    "B128/DE-sym@6s+sr + B128/DE-0@6u",
)
"""All presets, and pairs of known maps from 2.25 to 6.25 bits. Most round second moments to
nearest."""


def up_to(bits: float) -> float:
    """The first of `LIMITS` not below so many bits per state element, or infinity."""
    return next((limit for limit in LIMITS if bits <= limit), math.inf)


def moves(pair: Pair) -> bool:
    """True if the pair moves weights whose gradient is always 0, as pruning masks have it."""
    return pair.first is not None and not (pair.first.map.counted or pair.first.keeps_zero)


def diagnostic(pair: Pair) -> bool:
    """True if a pair only serves to compare: a moment in 32 bits, or a map fitted to the data."""
    members = (pair.first, pair.second)
    return any(q is None or isinstance(q.map, LloydMax) for q in members)
