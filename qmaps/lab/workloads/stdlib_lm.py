"""Language models of the Python standard library's own source."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from qmaps.capture.parameters import integer
from qmaps.lab.workloads import corpus
from qmaps.lab.workloads.base import REGISTRY, Batch, Workload, require
from qmaps.lab.workloads.gpt import GPT, GPTShape

MEDIUM = GPTShape()
TINY = GPTShape(context=64, width=64, layers=2, heads=4)

VALIDATION_SEED = 2**32
"""Seed of the places in the validation data."""


@dataclass(frozen=True)
class StdlibLM(Workload):
    """Next-byte prediction with a `GPT` of about two million parameters.

    The data are the source files of the running Python, so losses compare between runs on
    one Python version only.

    Attributes:
        shape: sizes of the model; sequences are as long as its context.
        batch_size: sequences per step.
        validation_batches: number of fixed batches in the average of `validate`.
        stable_embedding: whether the tokens' embedding is a `qmaps.nn.StableEmbedding`, with
            states in 32 bits.
    """

    name: ClassVar[str] = "stdlib-lm"
    unit: ClassVar[str] = "nats per byte"
    architecture: ClassVar[str] = "GPT on bytes"
    data: ClassVar[str] = "source files of Python's standard library"

    shape: GPTShape = MEDIUM
    batch_size: int = 16
    validation_batches: int = 16
    weight_decay: float = 0.1
    stable_embedding: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("batch_size", self.batch_size, 1)
        integer("validation_batches", self.validation_batches, 1)
        boolean = isinstance(self.stable_embedding, bool)
        require(boolean, "stable_embedding", self.stable_embedding, "True or False")
        enough = self.shape.vocabulary >= 256
        require(enough, "vocabulary", self.shape.vocabulary, "at least 256, one a byte")

    def build(self) -> nn.Module:
        """A new `GPT`."""
        return GPT(self.shape, stable_embedding=self.stable_embedding)

    def batch(self, step: int, seed: int) -> Batch:
        """Sequences at random places of the training files."""
        return self._windows(corpus.load().train, np.random.default_rng([seed, step]))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross-entropy per byte, in nats."""
        inputs, targets = batch
        return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float]:
        """``loss`` in nats per byte and ``bits_per_byte`` over fixed places of held-out files."""
        losses = [float(self.loss(model, batch)) for batch in self._validation()]
        loss = sum(losses) / self.validation_batches
        return {"loss": loss, "bits_per_byte": loss / math.log(2)}

    def data_digest(self) -> str:
        """Hash of the corpus."""
        return corpus.load().digest

    def _validation(self) -> Iterator[Batch]:
        """The fixed batches of `validate`."""
        for number in range(self.validation_batches):
            generator = np.random.default_rng([VALIDATION_SEED, number])
            yield self._windows(self._held_out(), generator)

    def _held_out(self) -> NDArray[np.uint8]:
        """Bytes of the validation data."""
        return corpus.load().validation

    def _windows(self, data: NDArray[np.uint8], generator: np.random.Generator) -> Batch:
        """Bytes at random places, and each one's successor."""
        length = self.shape.context
        starts = generator.integers(0, len(data) - length, size=self.batch_size)
        windows = np.stack([data[start : start + length + 1] for start in starts])
        tokens = torch.from_numpy(windows.astype(np.int64))
        return tokens[:, :-1], tokens[:, 1:]


@dataclass(frozen=True)
class StdlibLMTiny(StdlibLM):
    """`StdlibLM` at a size for tests and large grids: a whole run takes seconds."""

    name: ClassVar[str] = "stdlib-lm-tiny"

    shape: GPTShape = TINY
    batch_size: int = 8
    validation_batches: int = 8
    steps: int = 100
    warmup_steps: int = 10


REGISTRY[StdlibLM.name] = StdlibLM
REGISTRY[StdlibLMTiny.name] = StdlibLMTiny
