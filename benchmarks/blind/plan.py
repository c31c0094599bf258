"""Margins and pairs of the blind test; reports/blind/preregistration.md explains them."""

from __future__ import annotations

from benchmarks.version_0_3 import CANDIDATES

MARGIN = 0.02
"""Largest difference in steps, as a share, of a quantizer equivalent to 32 bits."""
SAFE_SHARE = 0.95
"""Share of the pairs called safe that must end within the margin."""
PAIRS = (
    *CANDIDATES[:15],
    "B128/DE@4s + B128/DE@4u",
    "B128/DE@4s + B128/DE-0@4u",
    "B2048/DE@4s+sr + B2048/DE-0@4u",
    "B128/linear@2s+sr + B128/DE-0@3u",
    "B256/DE@8s + B128/linear@4u",
)
"""Default candidates of version 0.3, and pairs that are not all good: a second moment of 0, nearest
rounding of 4 bits, long blocks, few levels."""
