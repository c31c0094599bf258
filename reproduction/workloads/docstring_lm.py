"""Fine-tuning a small language model of source code on prose."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from qmaps.lab.workloads.base import Batch, seeded
from qmaps.lab.workloads.gpt import GPT, GPTShape
from qmaps.lab.workloads.stdlib_lm import TINY, StdlibLM, StdlibLMTiny
from reproduction.workloads import docstrings

PRETRAINING = 500
"""Steps on source code, at a rate of 3e-3."""


@functools.lru_cache(maxsize=2)
def pretrained(shape: GPTShape, stable_embedding: bool, seed: int) -> dict[str, Tensor]:
    """Weights after training on source code with 32-bit AdamW, made once per process.

    They are the same for every call on one machine with one number of threads.
    """
    work = StdlibLMTiny(
        shape=shape,
        stable_embedding=stable_embedding,
        steps=PRETRAINING,
        lr=3e-3,
        warmup_steps=100,
    )
    model = work.model(seed)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=work.weight_decay)
    for step in range(1, work.steps + 1):
        optimizer.param_groups[0]["lr"] = work.learning_rate(step, work.steps)
        optimizer.zero_grad()
        work.loss(model, work.batch(step, seed)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


@functools.lru_cache(maxsize=1)
def prose() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Docstrings to train on and docstrings held out, each joined by line breaks, as bytes."""
    pairs = docstrings.load()
    train, validation = (
        np.frombuffer("\n".join(text for _, text in part).encode(), np.uint8)
        for part in (pairs.train, pairs.validation)
    )
    return train, validation


@dataclass(frozen=True)
class DocstringLM(StdlibLM):
    """A tiny `GPT`, trained on source code in 32 bits and fine-tuned on docstrings.

    Quantizers are compared on the fine-tuning. Its initial weights are the same for every seed; the
    seed decides the batches alone. As the path of a pretrained model hardly depends on small
    differences, differences between quantizers are much clearer than in training from random
    weights.
    """

    name: ClassVar[str] = "docstring-lm"

    shape: GPTShape = TINY
    batch_size: int = 8
    validation_batches: int = 24
    steps: int = 200
    warmup_steps: int = 20

    def build(self) -> nn.Module:
        """A `GPT` with the weights of `pretrained`."""
        start = self.start()
        with seeded(start):
            model = GPT(self.shape, stable_embedding=self.stable_embedding)
            model.load_state_dict(pretrained(self.shape, self.stable_embedding, start))
        return model

    def start(self) -> int:
        """Seed of the pretraining."""
        return 0

    def batch(self, step: int, seed: int) -> Batch:
        """Sequences at random places of the docstrings to train on."""
        return self._windows(prose()[0], np.random.default_rng([seed, step]))

    def _held_out(self) -> NDArray[np.uint8]:
        return prose()[1]

    def data_digest(self) -> str:
        """Hash of the docstrings and of the source code."""
        digest = hashlib.sha256(b"\0\0".join(part.tobytes() for part in prose()))
        digest.update(super().data_digest().encode())
        return digest.hexdigest()[:16]
