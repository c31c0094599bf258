"""The models, at the options that are best for 32 bits.

``python -m benchmarks.blind tune`` finds the options (reports/blind/tuning.csv).
"""

from __future__ import annotations

from benchmarks.blind.workloads.lora import Lora
from benchmarks.blind.workloads.microbiome import Microbiome
from benchmarks.blind.workloads.pitch import Pitch
from benchmarks.blind.workloads.seen import (
    DocstringStarts,
    LongDigits,
    LongLM,
    LongLMTiny,
    MiniLMParts,
)
from benchmarks.blind.workloads.voice import Voice
from qmaps.lab.workloads import Workload

JUDGES: dict[str, Workload] = {
    "microbiome": Microbiome(lr=4e-3, betas=(0.8, 0.999)),
    "pitch": Pitch(lr=1.2e-3),
    "lora": Lora(lr=5e-4, weight_decay=0.0),
    "voice": Voice(lr=1e-3, betas=(0.6, 0.999)),
    "docstring-lm": DocstringStarts(lr=4e-3, betas=(0.8, 0.999), weight_decay=0.0),
    "lm-tiny": LongLMTiny(lr=3e-3, betas=(0.8, 0.999), weight_decay=0.0),
    "stdlib-lm": LongLM(lr=2e-3, weight_decay=0.01),
    "digits": LongDigits(lr=8e-3),
    "minilm": MiniLMParts(lr=1e-4, weight_decay=1.0),
}
"""Models by name. No threshold of qmaps was fitted to one of them, except those of `SEEN`."""

SEEN = ("docstring-lm", "lm-tiny", "stdlib-lm", "digits", "minilm")
"""Models on which thresholds were chosen: only the presets are trained, and no verdicts tested."""
