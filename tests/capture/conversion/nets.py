"""A small model and its trained optimizers."""

from __future__ import annotations

import io
from collections.abc import Callable

import torch
from torch import Tensor, nn

Make = Callable[..., torch.optim.Optimizer]


def model() -> nn.Sequential:
    """5,120 weights in quantized tensors, and a few in tensors too small to be quantized."""
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 80), nn.Tanh(), nn.Linear(80, 7))
    with torch.no_grad():
        for param in net.parameters():
            param.copy_(torch.randn(param.shape, generator=generator) / 8)
    return net


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    """The same batches for the same numbers of steps."""
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        batch = torch.randn(16, 64, generator=generator)
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()


def trained(make: Make, **options: object) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """The model after five steps."""
    net = model()
    optimizer = make(net.named_parameters(), **options)
    train(net, optimizer, range(5))
    return net, optimizer


def resumed(net: nn.Module, make: Make, state_dict: dict[str, object], **options: object) -> Tensor:
    """All weights after five further steps of an optimizer with this checkpoint loaded."""
    copy = model()
    copy.load_state_dict(net.state_dict())
    optimizer = make(copy.named_parameters(), **options)
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    optimizer.load_state_dict(torch.load(file, weights_only=True))
    train(copy, optimizer, range(5, 10))
    return weights(copy)


def weights(net: nn.Module) -> Tensor:
    """All weights in one tensor."""
    return torch.cat([param.detach().flatten() for param in net.parameters()])
