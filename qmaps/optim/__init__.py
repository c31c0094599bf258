"""Optimizers whose states are kept quantized."""

from qmaps.optim.adam import Adam, Adam4bit, Adam8bit
from qmaps.optim.adamw import AdamW, AdamW4bit, AdamW8bit
from qmaps.optim.base import QuantizedOptimizer
from qmaps.optim.presets import PRESETS

__all__ = [
    "PRESETS",
    "Adam",
    "Adam4bit",
    "Adam8bit",
    "AdamW",
    "AdamW4bit",
    "AdamW8bit",
    "QuantizedOptimizer",
]
