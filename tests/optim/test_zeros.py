"""Zeros of states that can be negative: presets keep them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from qmaps.optim import PRESETS, SGD, AdamW, Lion, QuantizedOptimizer

OPTIMIZERS: dict[str, Callable[..., QuantizedOptimizer]] = {
    "AdamW": AdamW,
    "Lion": Lion,
    "SGD": lambda params, **options: SGD(params, momentum=0.9, **options),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("preset", PRESETS)
def test_a_weight_whose_gradient_is_zero_does_not_move(preset: str, optimizer: str) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.zeros(64, 128))
    mask = torch.rand(64, 128, generator=generator) < 0.5
    stepped = OPTIMIZERS[optimizer]([weight], lr=1e-3, state_quantizers=preset)
    for _ in range(5):
        weight.grad = torch.randn(64, 128, generator=generator) * mask
        stepped.step()
    assert torch.equal(weight == 0, ~mask)
