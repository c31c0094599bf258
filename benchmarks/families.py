"""Optimizers that are compared with each other, and widths of their states."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from qmaps import optim
from qmaps.errors import BadValueError
from qmaps.lab.workloads import Workload

WIDTHS = ("32bit", "8bit", "4bit", "paper-4bit")
"""Presets; what reproduces the 4-bit paper reads the last one."""


@dataclass(frozen=True)
class Family:
    """An optimizer and how it is trained.

    Attributes:
        kind: its class.
        rate: its learning rate, in units of the workload's, which is that of AdamW.
        options: others that are not its own defaults.
        kinds: classes of their own for some widths.
    """

    kind: type[optim.QuantizedOptimizer]
    rate: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)
    kinds: dict[str, type[optim.QuantizedOptimizer]] = field(default_factory=dict)

    def make(self, width: str, model: nn.Module, workload: Workload) -> torch.optim.Optimizer:
        """The optimizer of one width."""
        options = {"lr": workload.lr * self.rate, **self.options}
        if width not in WIDTHS:
            return self.kind(model.named_parameters(), state_quantizers=pair(width), **options)
        if width in self.kinds:
            return self.kinds[width](model.named_parameters(), **options)
        return self.kind(model.named_parameters(), state_quantizers=width, **options)


FAMILIES = {
    "Adam": Family(optim.Adam),
    "AdamW": Family(optim.AdamW),
    "SGD": Family(optim.SGD, 100, {"momentum": 0.9, "nesterov": True}),
    "RMSprop": Family(optim.RMSprop, 0.5, {"momentum": 0.5}),
    "Adagrad": Family(optim.Adagrad, 10),
    "Lion": Family(optim.Lion),
    "LAMB": Family(optim.LAMB, 20),
    "LARS": Family(optim.LARS, 5000),
    "AdEMAMix": Family(optim.AdEMAMix),
    "AdamWFactor": Family(optim.AdamWFactor, kinds={"4bit": optim.AdamW4bitFactor}),
    "SM3": Family(optim.SM3, 100),
    "Adafactor": Family(
        optim.Adafactor,
        options={"relative_step": False, "scale_parameter": False},
        kinds={"8bit": optim.Adafactor8bit},
    ),
}


def pair(text: str) -> dict[str, str | None]:
    """Quantizers of Adam's moments from ``"B128/DE@4s + 32bit"``.

    Raises:
        BadValueError: it is not two specs.
    """
    names = ("exp_avg", "exp_avg_sq")
    specs = [None if part == "32bit" else part for part in text.split(" + ")]
    if len(specs) != len(names):
        raise BadValueError(f"pair={text!r} must be two specs with ' + ' between them")
    return dict(zip(names, specs, strict=True))
