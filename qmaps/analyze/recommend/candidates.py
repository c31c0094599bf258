"""The pairs of quantizers that a recommendation compares by default."""

from __future__ import annotations

from qmaps.algebra.pair import Pair
from qmaps.maps.lloyd import LloydMax
from qmaps.optim.presets import PRESETS as OPTIMIZER_PRESETS

LIMITS = (3.3, 4.3, 6.3, 8.3)
"""Bits per element, scales included, up to which the best single pair is named."""

MOMENTS = ("exp_avg", "exp_avg_sq")

PRESETS = {
    Pair.parse(tuple(known.specs(MOMENTS, signed=MOMENTS[:1]).values())).spec: name  # type: ignore[arg-type]
    for name, known in OPTIMIZER_PRESETS.items()
    if name != "32bit"
}
"""Names of the presets of `qmaps.optim` by the pair that Adam gets from them."""

CANDIDATES = (
    *PRESETS,
    "B128/DE@3s+sr + B128/DE-0@3u",
    "B128/DE@3s+sr + B128/DE-0@3u+sr",
    "B128/linear0@3s+sr + B128/DE-0@3u+sr",
    "B128/linear0@3s+sr + B128/power2@3u+sr",
    "B128/DE@3s+sr + B128/DE-0@4u",
    "B128/DE@4s + B128/DE-0@4u",
    "B128/DE@4s+sr + B128/DE-0@4u+sr",
    "B128/DE@4s+sr + B128/power2@4u+sr",
    "B128/nf4@4s+sr + B128/power2@4u+sr",
    "B128/nf4@4s+sr + B128/linear@4u+sr",
    "B128/DE@5s+sr + B128/DE-0@5u+sr",
    "B128/DE@4s+sr + B256/DE-0@8u",
    "B256/DE@8s + B128/DE-0@4u",
    "B128/DE@6s + B128/DE-0@6u",
    "B128/DE@6s+sr + B128/DE-0@6u+sr",
    "B256/DE@8s+sr + B256/DE-0@8u+sr",
)
"""Presets, and pairs of known maps from 3 to 8 bits. None has a second moment with a zero, which
turns up as the fault it is only where the papers' own pair has it."""


def diagnostic(pair: Pair) -> bool:
    """Whether a pair only serves to compare: a moment in 32 bits, or a map fitted to the data."""
    members = (pair.first, pair.second)
    return any(q is None or isinstance(q.map, LloydMax) for q in members)
