"""Tensors as options are read as numbers, and stay in the groups."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qmaps import lpmm
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.errors import BadValueError, shown
from qmaps.lpmm import LPMMSGD, LPMMAdam
from qmaps.ops.backends import use_backend
from qmaps.optim import (
    SM3,
    Adafactor,
    Adafactor8bit,
    AdamW,
    AdamW8bitFactor,
    AdEMAMix8bit,
    QuantizedOptimizer,
)
from qmaps.optim.base import Shared
from tests.optim.families import FAMILIES, Options

STEPS = 4
SHARED = {*Shared.__annotations__, "quantize"}
Make = Callable[..., QuantizedOptimizer]

CASES: dict[str, tuple[Make, Options]] = {
    **{family.name: (family.eight, family.options[-1]) for family in FAMILIES},
    **{f"{f.name}, first": (f.full, f.options[0]) for f in FAMILIES},
    "AdEMAMix, growing": (AdEMAMix8bit, {"t_alpha": 3, "t_beta3": 3}),
    "AdamWFactor": (AdamW8bitFactor, {}),
    "SM3": (SM3, {"weight_decay": 0.1}),
    "Adafactor": (Adafactor, {"beta1": 0.9, "weight_decay": 0.1}),
    "Adafactor, fixed": (Adafactor8bit, {"beta2": 0.95, "eps": (1e-20, 1e-2), "factored": False}),
    "Adafactor, CAME": (Adafactor, {"beta1": 0.9, "beta3": 0.99, "fira_margin": 0.05}),
    "LPMMSGD": (LPMMSGD, {"dampening": 0.3, "weight_decay": 0.1}),
    "LPMMAdam": (LPMMAdam, {"weight_decay": 0.1}),
}


def numbers(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from numbers(item)


def tensors(value: Any, dtype: torch.dtype) -> Any:
    """Every float as a tensor."""
    if isinstance(value, tuple):
        return tuple(tensors(item, dtype) for item in value)
    return torch.tensor(value, dtype=dtype) if isinstance(value, float) else value


def floats(value: Any) -> Any:
    """Every tensor as a float."""
    if isinstance(value, tuple):
        return tuple(map(floats, value))
    return float(value) if isinstance(value, Tensor) else value


def trained(make: Make, options: Options) -> tuple[nn.Module, QuantizedOptimizer]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 80), nn.ReLU(), nn.Linear(80, 8))
    if make in (LPMMSGD, LPMMAdam):
        net = lpmm.convert(net)
    optimizer = make(net.parameters(), **options)
    for step in range(STEPS):
        optimizer.zero_grad()
        x = torch.randn(16, 64, generator=torch.Generator().manual_seed(step))
        net(x).square().mean().backward()
        optimizer.step()
    return net, optimizer


def parts(value: Any) -> list[Tensor]:
    if isinstance(value, QuantizedTensor):
        return [value.packed, *value.scales]
    return [value.detach()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("name", CASES)
def test_tensors_count_as_their_numbers_and_stay(
    name: str, backend: str, dtype: torch.dtype
) -> None:
    make, chosen = CASES[name]
    small = {} if make in (LPMMSGD, LPMMAdam) else {"min_quantized_size": 256}
    with use_backend(backend):
        complete = make(nn.Linear(2, 2).parameters(), **chosen).defaults
        options = {k: tensors(v, dtype) for k, v in complete.items() if k not in SHARED}
        actual = list(numbers(tuple(options.values())))
        assert len(actual) >= 2  # lr, and the options under test
        before = [tensor.clone() for tensor in actual]
        net, optimizer = trained(make, {**options, **small})
        same, expected_optimizer = trained(
            make, {**{k: floats(v) for k, v in options.items()}, **small}
        )
    assert all(map(torch.equal, actual, before))
    group = optimizer.param_groups[0]
    stored = list(numbers(tuple(group[key] for key in options)))
    assert len(stored) == len(actual)
    assert all(a is b for a, b in zip(stored, actual, strict=True))
    for a, b in zip(net.state_dict().values(), same.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    for a, b in zip(optimizer.state.values(), expected_optimizer.state.values(), strict=True):
        for key in a:
            assert all(map(torch.equal, parts(a[key]), parts(b[key]))), key


@pytest.mark.parametrize("make", [AdamW, torch.optim.AdamW])
def test_groups_that_share_a_learning_rate_share_it_after_resuming(make: Any) -> None:
    def begun() -> tuple[Any, Any]:
        lr = torch.tensor(0.01)
        params = [nn.Parameter(torch.ones(4)) for _ in range(2)]
        optimizer = make([{"params": [param], "lr": lr} for param in params], foreach=False)
        # A schedule of the first group alone moves both.
        return optimizer, torch.optim.lr_scheduler.LambdaLR(
            optimizer, [lambda step: 1.0, lambda step: 0.9**step]
        )

    optimizer, scheduler = begun()
    buffer = io.BytesIO()
    for steps in (2, 3):
        for _ in range(steps):
            for group in optimizer.param_groups:
                group["params"][0].grad = torch.ones(4)
            optimizer.step()
            scheduler.step()
        if steps == 2:
            torch.save([optimizer.state_dict(), scheduler.state_dict()], buffer)
            optimizer, scheduler = begun()
            buffer.seek(0)
            saved = torch.load(buffer, weights_only=True)
            optimizer.load_state_dict(saved[0])
            scheduler.load_state_dict(saved[1])
    first, second = (group["lr"] for group in optimizer.param_groups)
    assert first is second
    assert float(first) == pytest.approx(0.01 * 0.9**5)
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups[0]["lr"] is not first


@pytest.mark.parametrize("lr", [torch.tensor([0.1, 0.1]), torch.tensor([])], ids=len)
def test_a_learning_rate_of_several_numbers_is_a_value_error(lr: Tensor) -> None:
    with pytest.raises(BadValueError) as caught:
        AdamW([nn.Parameter(torch.zeros(3))], lr=lr)
    assert str(caught.value) == (
        f"lr={shown(lr)} must be a number, or a tensor that holds one real number"
    )
