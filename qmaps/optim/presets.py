"""Quantizers of the Adam family's states by name."""

from __future__ import annotations

from qmaps.errors import BadValueError, nearest

PRESETS: dict[str, dict[str, str | None]] = {
    "32bit": {"exp_avg": None, "exp_avg_sq": None},
    "8bit": {"exp_avg": "B256/DE@8s", "exp_avg_sq": "B256/DE-0@8u"},
    "4bit": {"exp_avg": "B128/DE@4s", "exp_avg_sq": "rank1/linear@4u"},
    "paper-8bit": {"exp_avg": "B2048/DE@8s", "exp_avg_sq": "B2048/DE@8u"},
    "paper-4bit": {"exp_avg": "B128/DE@4s", "exp_avg_sq": "rank1/linear@4u"},
}
"""``paper-*`` as published; ``8bit`` and ``4bit`` keep the second moment away from zero.

Source: 8-bit optimizers, section 2; 4-bit optimizers, section 5.
"""


def preset(name: str) -> dict[str, str | None]:
    """The specs of a preset by state name; None keeps a state in 32 bits."""
    if name not in PRESETS:
        raise BadValueError(
            f"state_quantizers={name!r} is no preset; allowed are {', '.join(PRESETS)}, or a dict "
            f"from state names to specs{nearest(name, PRESETS)}"
        )
    return dict(PRESETS[name])
