"""The judge ``docstring-lm`` from several trained weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from reproduction.workloads.docstring_lm import DocstringLM

STARTS = 8
"""Number of pretrained models."""


@dataclass(frozen=True)
class DocstringStarts(DocstringLM):
    """`DocstringLM` whose pretrained weights depend on the seed, with more validation data."""

    validation_batches: int = 96

    def start(self) -> int:
        """Seed of the pretraining, one of `STARTS`."""
        return torch.initial_seed() % STARTS
