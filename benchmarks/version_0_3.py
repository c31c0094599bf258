"""Presets and candidates of version 0.3, trained and replayed by finished studies.

Their reports have rows of these pairs; `qmaps.optim.PRESETS` has the current ones.
"""

from __future__ import annotations

from qmaps.optim.presets import FORMER, pair_of

PAIR_OF = {
    **{name.removesuffix("-0.3"): pair_of(name).spec for name in FORMER},
    **{name: pair_of(name).spec for name in ("paper-8bit", "paper-4bit")},
}
"""Quantizers of Adam's moments by preset."""

PRESETS = {pair: name for name, pair in PAIR_OF.items()}

CANDIDATES = (
    *PRESETS,
    "B32x8/quantile-normal@2s+sr + B128/power3@2u",
    "B64x8/quantile-normal@3s+sr + B32x8/power3@2u",
    "B32x8/quantile-normal@2s+sr + B128/DE-0@3u",
    "B32x8/quantile-normal@3s+sr + B128/DE-0@3u",
    "B128/linear0@3s+sr + B128/power2@3u",
    "B128/DE@3s+sr + B128/DE-0@4u",
    "B128/DE@4s+sr + B128/DE-0@3u",
    "B128/nf4@4s+sr + B128/DE-0@4u",
    "B128/DE@4s+sr + B128/linear@4u",
    "B128/nf4@4s+sr + B128/linear@4u+sr",
    "B128/DE@5s+sr + B128/DE-0@5u",
    "B128/DE@4s+sr + B256/DE-0@8u",
    "B256/DE@8s + B128/DE-0@4u",
    "B128/DE@6s + B128/DE-0@6u",
    "B128/DE@6s+sr + B128/DE-0@6u",
)
"""Candidates of `qmaps.recommend`."""
