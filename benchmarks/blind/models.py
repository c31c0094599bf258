"""The models of the blind test; reports/blind/preregistration.md describes them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    """A trained model.

    Attributes:
        steps: number of steps of its trainings.
    """

    steps: int


SEEN = ("docstring-lm", "lm-tiny", "stdlib-lm", "digits", "minilm")
"""Models used to choose the thresholds; only the presets were trained on them."""
MODELS = {name: Model(120) for name in ("microbiome", "pitch", "lora", "voice")} | {
    name: Model(200 if name in ("docstring-lm", "minilm") else 2000) for name in SEEN
}
"""Models by name."""
