"""Handwritten digits."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from qmaps.capture.parameters import integer
from qmaps.distribution import install
from qmaps.errors import BadValueError
from qmaps.lab.workloads.base import REGISTRY, Batch, Workload

VALIDATION = 360
"""Images held out of 1797."""


@functools.lru_cache(maxsize=1)
def images() -> tuple[Tensor, Tensor]:
    """Images of shape (1797, 1, 8, 8), 0 to 1, and their digits, in a fixed random order."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise BadValueError(
            f"workload 'digits' needs scikit-learn; install it with {install('lab')}"
        ) from None
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    pixels = torch.tensor(data.images[order], dtype=torch.float32)[:, None] / 16
    return pixels, torch.tensor(data.target[order], dtype=torch.int64)


@dataclass(frozen=True)
class Digits(Workload):
    """A convolutional net of about 53 thousand parameters on 8 x 8 images.

    The order of the images and the split are the same for every seed.

    Attributes:
        batch_size: images per step.
    """

    name: ClassVar[str] = "digits"
    unit: ClassVar[str] = "nats per image"
    architecture: ClassVar[str] = "convolutional net"
    data: ClassVar[str] = "handwritten digits of 8 x 8 pixels (scikit-learn)"

    batch_size: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("batch_size", self.batch_size, 1)

    def build(self) -> nn.Module:
        """Two convolutions, two linear layers."""
        return nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(4),
            nn.Flatten(),
            nn.Linear(256, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )

    def batch(self, step: int, seed: int) -> Batch:
        """Images drawn with replacement from those not held out."""
        pixels, labels = images()
        generator = np.random.default_rng([seed, step])
        chosen = generator.integers(VALIDATION, len(labels), size=self.batch_size)
        return pixels[chosen], labels[chosen]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross-entropy per image, in nats."""
        return F.cross_entropy(model(batch[0]), batch[1])

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float]:
        """``loss`` in nats per image and ``accuracy``, 0 to 1, on the held-out images."""
        pixels, labels = (part[:VALIDATION] for part in images())
        logits = model(pixels)
        accuracy = (logits.argmax(dim=1) == labels).double().mean()
        return {"loss": float(F.cross_entropy(logits, labels)), "accuracy": float(accuracy)}

    def data_digest(self) -> str:
        """Hash of images and labels in their order."""
        parts = b"".join(part.numpy().tobytes() for part in images())
        return hashlib.sha256(parts).hexdigest()[:16]


REGISTRY[Digits.name] = Digits
