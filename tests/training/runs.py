"""Runs of small models, for comparisons with one another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qmaps import optim
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.optim import QuantizedOptimizer

Make = Callable[..., QuantizedOptimizer]

KINDS: dict[str, tuple[type[QuantizedOptimizer], dict[str, Any]]] = {
    "AdamW8bit": (optim.AdamW8bit, {}),
    "AdamW4bit": (optim.AdamW4bit, {}),
    "AdamW, paper-4bit": (optim.AdamW, {"state_quantizers": "paper-4bit"}),
    "AdamW+sr": (
        optim.AdamW,
        {"state_quantizers": {"exp_avg": "B128/DE@4s+sr", "exp_avg_sq": "rank1/linear@4u+sr"}},
    ),
    "SGD8bit": (optim.SGD8bit, {"momentum": 0.9}),
    "Lion8bit": (optim.Lion8bit, {}),
    "LAMB8bit": (optim.LAMB8bit, {}),
    "AdamW4bitFactor": (optim.AdamW4bitFactor, {}),
    "Adafactor8bit": (optim.Adafactor8bit, {"beta1": 0.9}),
}
"""One of each kind: element-wise, with wide scales, stochastic, of norms, factored."""

EVERY = pytest.mark.parametrize("kind", KINDS)

OF_EACH_STEP = ("AdamW8bit", "LAMB8bit", "Adafactor8bit")
"""One kind of each way to step: element by element, by norms, by factors."""


def every_with(
    parameter: str, values: Iterable[Any], further: Iterable[str] = OF_EACH_STEP
) -> pytest.MarkDecorator:
    """Parametrize by every kind with the first value, and by some kinds with each other value."""
    first, *remaining = values
    pairs = [(kind, first) for kind in KINDS] + [(k, value) for value in remaining for k in further]
    return pytest.mark.parametrize(("kind", parameter), pairs, ids=str)


def make(kind: str, params: Iterable[Any], **options: Any) -> QuantizedOptimizer:
    """An optimizer of this kind with quantized tensors of any size."""
    cls, defaults = KINDS[kind]
    return cls(params, **{"lr": 1e-2, "min_quantized_size": 0, **defaults, **options})


def net(dtype: torch.dtype = torch.float32) -> nn.Module:
    """A small net; the same each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 40), nn.Tanh(), nn.Linear(40, 12)).to(dtype)


def loss_of(model: nn.Module, number: int) -> Tensor:
    """The loss of one batch."""
    x = torch.randn(8, 24, generator=torch.Generator().manual_seed(number))
    dtype = next(model.parameters()).dtype
    return (model(x.to(dtype)) - x[:, :12].to(dtype)).float().square().mean()


def gradients(params: Iterable[Tensor], number: int) -> None:
    """Set gradients from the shapes and the number alone."""
    generator = torch.Generator().manual_seed(number)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)


def parts(value: Any) -> list[Tensor]:
    """The tensors of a state."""
    return [value.packed, *value.scales] if isinstance(value, QuantizedTensor) else [value]


def assert_same(ours: QuantizedOptimizer, theirs: QuantizedOptimizer) -> None:
    """Parameters and states have the same bits, the parameters in the same order."""
    ours_params, right = (
        [p for group in optimizer.param_groups for p in group["params"]]
        for optimizer in (ours, theirs)
    )
    assert len(ours_params) == len(right)
    for p, q in zip(ours_params, right, strict=True):
        assert torch.equal(p, q)
        state, expected = ours.state.get(p, {}), theirs.state.get(q, {})
        assert state.keys() == expected.keys()
        for name in state:
            for x, y in zip(parts(state[name]), parts(expected[name]), strict=True):
                assert torch.equal(x, y), name
