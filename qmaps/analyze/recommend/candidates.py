"""The default pairs of quantizers of a recommendation."""

from __future__ import annotations

from qmaps.algebra.pair import Pair
from qmaps.maps.lloyd import LloydMax
from qmaps.optim.presets import PAIRS

FULL = Pair(None, None)

PRESETS = PAIRS
"""Names of the presets by the pair that Adam gets from them."""

_FIRST, _SECOND = "B64xbf16/mu-law10:linear0", "B64xbf16/geometric"

CANDIDATES = (
    *PRESETS,
    f"{_FIRST}@3s+qsr + {_SECOND}@2u+qsr",
    f"{_FIRST}@4s+qsr + {_SECOND}@3u+qsr",
    f"{_FIRST}(nearest=true)@4s + {_SECOND}@4u+qsr",
    f"{_FIRST}@4s+qsr + {_SECOND}@4u+qsr",
    f"{_FIRST}@6s+qsr + {_SECOND}@4u+qsr",
    f"{_FIRST}@4s+qsr + B256/geometric@8u+qsr",
    f"B256/DE-sym@8s + {_SECOND}@4u+qsr",
    "B256/DE-sym@8s+qsr + B256/geometric@8u+qsr",
    "B64xbf16/nf4@4s+qsr + B64xbf16/geometric@4u+qsr",
)
"""All presets, and pairs of their maps from 2.75 to 8.12 bits. All but ``paper-*`` round second
moments so that they follow. One rounds first moments of 8 bits by ``+qsr`` too: to nearest, those
of rows without gradients stay where they are."""


def moves(pair: Pair) -> bool:
    """True if the pair moves weights whose gradient is always 0, as pruning masks have it."""
    return pair.first is not None and not (pair.first.map.counted or pair.first.keeps_zero)


def diagnostic(pair: Pair) -> bool:
    """True if a pair only serves to compare: a moment in 32 bits, or a map fitted to the data."""
    members = (pair.first, pair.second)
    return any(q is None or isinstance(q.map, LloydMax) for q in members)
