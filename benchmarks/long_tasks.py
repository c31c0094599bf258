"""Trainings of 8,000 steps and more; each takes seconds to two minutes of one core.

They were chosen, and their learning rates tuned in 32 bits with one seed, before any quantized run.
All but `FullBatch` see new data in every step, so the loss of longer trainings is lower.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from qmaps.lab.workloads.base import Batch, Workload, seeded
from qmaps.lab.workloads.digits import VALIDATION, Digits, images

DATA_SEED = 2**31


@dataclass(frozen=True)
class MovedDigits(Digits):
    """`Digits` turned, scaled and moved by chance, with noise: an image is never seen twice.

    Attributes:
        copies: of each held-out image in the validation.
    """

    name: ClassVar[str] = "moved-digits"

    steps: int = 8000
    warmup_steps: int = 100
    batch_size: int = 32
    copies: int = 32

    def batch(self, step: int, seed: int) -> Batch:
        """Images of `Digits`, moved."""
        pixels, labels = super().batch(step, seed)
        return moved(pixels, np.random.default_rng([seed, step, 1])), labels

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float]:
        """``loss`` over moved copies of the held-out images."""
        pixels, labels = held_out(self.copies)
        return {"loss": float(F.cross_entropy(model(pixels), labels))}


def moved(pixels: Tensor, generator: np.random.Generator) -> Tensor:
    """Images under random affine maps, with noise of standard deviation 0.15."""
    count = len(pixels)
    angle, size = generator.uniform(-0.6, 0.6, count), generator.uniform(0.8, 1.3, count)
    shift = generator.uniform(-0.25, 0.25, (count, 2))
    theta = np.empty((count, 2, 3), dtype=np.float32)
    theta[:, 0, 0] = theta[:, 1, 1] = np.cos(angle) * size
    theta[:, 0, 1], theta[:, 1, 0] = -np.sin(angle) * size, np.sin(angle) * size
    theta[:, :, 2] = shift
    grid = F.affine_grid(torch.from_numpy(theta), list(pixels.shape), align_corners=False)
    noise = generator.standard_normal(tuple(pixels.shape), dtype=np.float32) * np.float32(0.15)
    return F.grid_sample(pixels, grid, align_corners=False) + torch.from_numpy(noise)


@functools.lru_cache(maxsize=1)
def held_out(copies: int) -> Batch:
    """The validation of `MovedDigits`."""
    pixels, labels = (part[:VALIDATION].repeat_interleave(copies, 0) for part in images())
    return moved(pixels, np.random.default_rng(DATA_SEED)), labels


@dataclass(frozen=True)
class Regression(Workload):
    """Examples of a formula, new ones in every step. The loss is half the mean square error."""

    unit: ClassVar[str] = "half square error"

    steps: int = 8000
    warmup_steps: int = 100
    batch_size: int = 64

    @abstractmethod
    def examples(self, count: int, generator: np.random.Generator) -> Batch:
        """Inputs and targets."""

    @abstractmethod
    def predicted(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """A number for each input."""

    def batch(self, step: int, seed: int) -> Batch:
        """New examples."""
        return self.examples(self.batch_size, np.random.default_rng([seed, step]))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Half the mean square error."""
        return F.mse_loss(self.predicted(model, batch[0]), batch[1]) / 2

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float]:
        """``loss`` over 16,384 examples."""
        examples = self.examples(1 << 14, np.random.default_rng(DATA_SEED))
        return {"loss": float(self.loss(model, examples))}

    def data_digest(self) -> str:
        """The data are a formula."""
        return "formula"


@dataclass(frozen=True)
class Teacher(Regression):
    """A net for tables of 24 columns; a random net with three layers computes the target.

    A quarter of the columns are rounded to three values, and the target has noise.
    """

    name: ClassVar[str] = "teacher"

    def build(self) -> nn.Module:
        """Two hidden layers of 128."""
        return nn.Sequential(
            nn.Linear(24, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 128), nn.GELU(),
            nn.LayerNorm(128), nn.Linear(128, 1),
        )  # fmt: skip

    @torch.no_grad()
    def examples(self, count: int, generator: np.random.Generator) -> Batch:
        """Columns and the teacher's targets, with noise of standard deviation 0.3."""
        x = torch.from_numpy(generator.standard_normal((count, 24), dtype=np.float32))
        x[:, :6] = x[:, :6].round().clamp(-1, 1)
        noise = torch.from_numpy(generator.standard_normal(count, dtype=np.float32))
        return x, teacher()(x)[:, 0] + 0.3 * noise

    def predicted(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """The output of the net."""
        return model(inputs)[:, 0]  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=1)
def teacher() -> nn.Module:
    """The net that computes the targets of `Teacher`."""
    with seeded(DATA_SEED):
        net = nn.Sequential(
            nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)
        )
        for layer in (net[0], net[2], net[4]):
            nn.init.normal_(layer.weight, std=2 / layer.weight.shape[1] ** 0.5)
    return net


@dataclass(frozen=True)
class Ratings(Regression):
    """Two embeddings; a step uses a few of their rows. Users rate items, some far more often.

    The rating is the product of a user's and an item's hidden vectors, with noise.
    """

    name: ClassVar[str] = "ratings"

    batch_size: int = 128
    weight_decay: float = 0.0

    def build(self) -> nn.Module:
        """Vectors of 16 for 500 users and 250 items, and a layer over their product."""
        return nn.ModuleList([nn.Embedding(500, 16), nn.Embedding(250, 16), nn.Linear(16, 1)])

    def examples(self, count: int, generator: np.random.Generator) -> Batch:
        """Pairs of a user and an item, and their ratings; small numbers are more frequent."""
        pairs = (generator.random((count, 2)) ** 2 * [500, 250]).astype(np.int64)
        chosen = torch.from_numpy(pairs)
        users, items = tastes()
        noise = torch.from_numpy(generator.standard_normal(count, dtype=np.float32))
        return chosen, (users[chosen[:, 0]] * items[chosen[:, 1]]).sum(1) + 0.5 * noise

    def predicted(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """The rating of each pair."""
        users, items, layer = model.children()
        return layer(users(inputs[:, 0]) * items(inputs[:, 1]))[:, 0]


@functools.lru_cache(maxsize=1)
def tastes() -> tuple[Tensor, Tensor]:
    """Hidden vectors of users and items."""
    generator = np.random.default_rng(DATA_SEED + 1)
    users, items = (generator.standard_normal((n, 16), dtype=np.float32) for n in (500, 250))
    return torch.from_numpy(users), torch.from_numpy(items) / 4


@dataclass(frozen=True)
class FullBatch(Workload):
    """A small net on the same 256 digits in every step: gradients without noise.

    The result is the loss on these images.
    """

    name: ClassVar[str] = "full-batch"
    unit: ClassVar[str] = "nats per image"

    steps: int = 8000
    warmup_steps: int = 100
    weight_decay: float = 0.0

    def build(self) -> nn.Module:
        """One hidden layer of 32."""
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))

    def batch(self, step: int, seed: int) -> Batch:  # noqa: ARG002 - the same in all steps
        """All images, with a tenth of the labels wrong."""
        pixels, labels = (part[VALIDATION : VALIDATION + 256] for part in images())
        wrong = torch.arange(256) % 10 == 0
        return pixels, torch.where(wrong, (labels + 1) % 10, labels)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross-entropy with smoothed labels, for a finite minimum."""
        return F.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.1)

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float]:
        """``loss`` over the same images."""
        return {"loss": float(self.loss(model, self.batch(0, 0)))}

    def data_digest(self) -> str:
        """The digest of `Digits`."""
        return Digits().data_digest()
