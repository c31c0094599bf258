"""A small net in float64, stepped by a rule written down independently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from qmaps.optim import QuantizedOptimizer

Matrix = np.ndarray[Any, np.dtype[np.float64]]
Rule = Callable[[int, Matrix, Matrix, dict[str, Matrix]], Matrix]
"""Step, parameter, gradient and a place for states -> the new parameter."""


def net(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 5, bias=False))
    return layers.to(dtype)


def losses(
    cls: type[QuantizedOptimizer], rule: Rule, steps: int = 100, **options: Any
) -> tuple[list[float], list[float], float]:
    """Losses of both trainings, and the final distance of their parameters.

    The distance is relative to the movement of the parameters.
    """
    inputs = torch.randn(steps, 16, 12, generator=torch.Generator().manual_seed(7))
    ours, theirs, start = net(torch.float32), net(torch.float64), net(torch.float64)
    optimizer = cls(ours.parameters(), state_quantizers=None, **options)
    memory: list[dict[str, Matrix]] = [{} for _ in theirs.parameters()]
    actual: tuple[list[float], list[float]] = ([], [])
    for step, x in enumerate(inputs, 1):
        for model, history in ((ours, actual[0]), (theirs, actual[1])):
            model_inputs = x.to(next(model.parameters()).dtype)
            loss = (model(model_inputs) - model_inputs[:, :5]).square().mean()
            model.zero_grad()
            loss.backward()
            history.append(float(loss.detach()))
        optimizer.step()
        for p, states in zip(theirs.parameters(), memory, strict=True):
            moved = rule(step, p.detach().numpy(), p.grad.numpy(), states)
            p.data.copy_(torch.from_numpy(moved))
    columns = [
        torch.cat([p.detach().double().reshape(-1) for p in model.parameters()])
        for model in (ours, theirs, start)
    ]
    apart = (columns[0] - columns[1]).norm() / (columns[2] - columns[1]).norm()
    return *actual, float(apart)
