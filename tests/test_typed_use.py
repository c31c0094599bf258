"""Use of the public names as a type checker sees it: `make types` checks this file too."""

from __future__ import annotations

import torch
from torch import nn

import qmaps


def test_optimizers_can_be_made() -> None:
    model = nn.Linear(4, 4, bias=False)
    made: list[torch.optim.Optimizer] = [
        qmaps.optim.AdamW(model.named_parameters(), lr=1e-3, state_quantizers="4bit"),
        qmaps.optim.AdamW8bit(model.parameters()),
        qmaps.optim.Muon(model.parameters(), lr=0.01),
        qmaps.optim.Prodigy8bit(model.parameters()),
        qmaps.optim.SOAP4bit(model.parameters()),
    ]
    assert all(optimizer.param_groups for optimizer in made)


def test_quantizers_can_be_made() -> None:
    quantizer: qmaps.Quantizer = qmaps.normalize.BlockWise(64) / qmaps.maps.Linear(bits=4)
    codes: qmaps.QuantizedTensor = quantizer.quantize(torch.ones(8, 8))
    values: torch.Tensor = codes.dequantize()
    assert values.eq(1).all()
    codebook: qmaps.maps.Map = qmaps.maps.Codebook([-1.0, 0.0, 0.5, 1.0], label="mine")
    assert codebook.bits == 2
