"""The models on which thresholds were chosen, with more steps, starts and validation data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from benchmarks.blind.workloads.validation import means
from qmaps.lab.workloads.digits import VALIDATION, Digits, images
from qmaps.lab.workloads.stdlib_lm import TINY, GPTShape, StdlibLM
from reproduction.workloads.docstring_lm import DocstringLM
from reproduction.workloads.minilm import MiniLM

STARTS = 8
"""Number of pretrained models."""


@torch.no_grad()
def sequence_losses(work: StdlibLM, model: nn.Module) -> dict[str, float]:
    """``loss`` and its parts over the places of `StdlibLM.validate`, in nats per byte."""
    losses = []
    for inputs, targets in work._validation():
        logits = model(inputs).transpose(1, 2)
        losses.append(F.cross_entropy(logits, targets, reduction="none").mean(dim=1))
    return means(torch.cat(losses))


@dataclass(frozen=True)
class DocstringStarts(DocstringLM):
    """`DocstringLM` whose pretrained weights depend on the seed, with more validation data."""

    validation_batches: int = 96

    validate = sequence_losses

    def start(self) -> int:
        """Seed of the pretraining, one of `STARTS`."""
        return torch.initial_seed() % STARTS


@dataclass(frozen=True)
class LongLM(StdlibLM):
    """`StdlibLM` with small batches, for twice as many steps as 1 / (1 - beta2)."""

    name: ClassVar[str] = "long-stdlib-lm"

    steps: int = 2000
    lr: float = 2e-3
    warmup_steps: int = 100
    batch_size: int = 4
    validation_batches: int = 64

    validate = sequence_losses


@dataclass(frozen=True)
class LongLMTiny(LongLM):
    """`LongLM` at the size of `StdlibLMTiny`."""

    name: ClassVar[str] = "long-stdlib-lm-tiny"

    shape: GPTShape = TINY
    lr: float = 6e-3
    batch_size: int = 8


@dataclass(frozen=True)
class LongDigits(Digits):
    """`Digits` for twice as many steps as 1 / (1 - beta2)."""

    name: ClassVar[str] = "long-digits"

    steps: int = 2000
    lr: float = 4e-3
    warmup_steps: int = 100

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float]:
        """``loss`` and its parts in nats per image."""
        pixels, labels = (part[:VALIDATION] for part in images())
        return means(F.cross_entropy(model(pixels), labels, reduction="none"))


@dataclass(frozen=True)
class MiniLMParts(MiniLM):
    """`MiniLM` with short texts and more validation data."""

    name: ClassVar[str] = "minilm-parts"

    steps: int = 200
    warmup_steps: int = 20
    longest: int = 20
    validation_batches: int = 8

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float]:
        """``loss`` and its parts in nats per pair."""
        batches = self._validation(model)
        losses = [F.cross_entropy(x, torch.arange(len(x)), reduction="none") for x in batches]
        return means(torch.cat(losses))
