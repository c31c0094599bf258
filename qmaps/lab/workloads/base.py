"""The base class of workloads: a model, its data, and default options of training."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from qmaps.capture.parameters import integer
from qmaps.errors import BadValueError, shown

REGISTRY: dict[str, Callable[[], Workload]] = {}
"""What makes each workload, by name."""

Batch = tuple[Tensor, Tensor]


def require(allowed: bool, parameter: str, value: Any, wanted: str) -> None:
    """Raise a BadValueError unless a value is allowed; `wanted` are the words after "must be"."""
    if not allowed:
        raise BadValueError(f"{parameter}={shown(value)} must be {wanted}")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global CPU generator for the block, and restore its state after it."""
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also seed CUDA's generators, which nobody puts back.
        torch.default_generator.manual_seed(seed)
        yield


@dataclass(frozen=True)
class Workload(ABC):
    """A model, real data to train it on, and the options of its training.

    Weights and batches are pure functions of the seed and the step, so a run can be resumed
    without the state of any random generator. ``dataclasses.replace(workload, lr=...)`` makes a
    variant.

    Attributes:
        steps: default number of training steps, at least 1.
        lr: peak learning rate, above 0.
        betas, eps, weight_decay: AdamW's other options.
        warmup_steps: number of steps of linear warm-up, at least 0, but never more than half of a
            run. A cosine down to a tenth of `lr` follows.
    """

    name: ClassVar[str]
    unit: ClassVar[str]
    """Unit of the loss, for axes."""
    architecture: ClassVar[str] = ""
    """The model in a few words, for pages."""
    data: ClassVar[str] = ""
    """The data in a few words, for pages."""

    steps: int = 250
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    warmup_steps: int = 20

    def __post_init__(self) -> None:
        integer("steps", self.steps, 1)
        integer("warmup_steps", self.warmup_steps, 0)
        require(0 < self.lr < math.inf, "lr", self.lr, "a finite number above 0")
        in_range = len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)
        require(in_range, "betas", self.betas, "two numbers of at least 0 and below 1")
        for parameter, value in (("eps", self.eps), ("weight_decay", self.weight_decay)):
            require(0 <= value < math.inf, parameter, value, "a finite number of at least 0")

    def model(self, seed: int) -> nn.Module:
        """The model with weights drawn from `seed`, an int of at least 0.

        The states of torch's generators are the same after the call as before it.
        """
        with seeded(integer("seed", seed, 0)):
            return self.build()

    @abstractmethod
    def build(self) -> nn.Module:
        """A new model, its weights drawn from torch's generator."""

    @abstractmethod
    def batch(self, step: int, seed: int) -> Batch:
        """Inputs and targets of training step `step`, counted from 1; the same for equal `seed`."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The loss to be minimized, a scalar."""

    @abstractmethod
    def validate(self, model: nn.Module) -> dict[str, float]:
        """Metrics over fixed validation data; ``loss`` is one of them."""

    @abstractmethod
    def data_digest(self) -> str:
        """A short hash of all data, so a run cannot be resumed with other data."""

    def learning_rate(self, step: int, steps: int) -> float:
        """The learning rate of `step`, counted from 1, in a run of `steps` steps."""
        # A run shorter than the warm-up would otherwise never see the peak.
        warmup = min(self.warmup_steps, steps // 2)
        if step <= warmup:
            return self.lr * step / warmup
        progress = (step - warmup) / (steps - warmup)
        return self.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))

    def settings(self) -> dict[str, Any]:
        """The settings of a run besides seed, steps and optimizer, as JSON has them."""
        options = {key: value for key, value in asdict(self).items() if key != "steps"}
        return {**options, "betas": list(self.betas), "data": self.data_digest()}
