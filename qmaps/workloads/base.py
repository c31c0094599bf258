"""What every workload is: a model, its data, and how it is trained by default."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

REGISTRY: dict[str, Callable[[], Workload]] = {}
"""What makes each workload, by name."""

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Workload(ABC):
    """A model on real data.

    Everything is a pure function of the seed and the step, so that a run can be resumed
    without the state of any random generator.

    Attributes:
        steps: default number of training steps.
        lr: peak learning rate.
        betas, eps, weight_decay: AdamW's other options.
        warmup_steps: steps of linear warm-up; a cosine to a tenth of `lr` follows.
    """

    name: ClassVar[str]
    unit: ClassVar[str]
    """Unit of the loss, for axes."""

    steps: int = 250
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    warmup_steps: int = 20

    def model(self, seed: int) -> nn.Module:
        """The model with weights drawn from `seed`; torch's own generator is left alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.build()

    @abstractmethod
    def build(self) -> nn.Module:
        """A new model, its weights drawn from torch's generator."""

    @abstractmethod
    def batch(self, step: int, seed: int) -> Batch:
        """Inputs and targets of training step `step`, counted from 1."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The loss to be minimized, a scalar."""

    @abstractmethod
    def validate(self, model: nn.Module) -> dict[str, float]:
        """Metrics over fixed validation data; ``loss`` is one of them."""

    def learning_rate(self, step: int, steps: int) -> float:
        """The learning rate of `step`, counted from 1, in a run of `steps`."""
        if step <= self.warmup_steps:
            return self.lr * step / self.warmup_steps
        progress = (step - self.warmup_steps) / max(1, steps - self.warmup_steps)
        return self.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))

    def settings(self) -> dict[str, Any]:
        """The options above, for run.json."""
        return {
            "lr": self.lr,
            "betas": list(self.betas),
            "eps": self.eps,
            "weight_decay": self.weight_decay,
            "warmup_steps": self.warmup_steps,
        }
