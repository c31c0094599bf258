"""Schedule-free AdamW, beside the authors' package."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from qmaps.ops.backends import use_backend
from qmaps.optim import AdamWScheduleFree, AdamWScheduleFree4bit, AdamWScheduleFree8bit
from tests.optim.one_step import assert_bits, random_arrays, step

STATES = {"z_offset": "d", "exp_avg_sq": "v"}


@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_the_documented_operations(decay: float, engine: str) -> None:
    f = np.float32
    x = random_arrays("d", "V")
    with use_backend(engine):
        actual = step(
            AdamWScheduleFree, x, 4, STATES, lr=0.01, betas=(0.9, 0.99), eps=1e-4,
            weight_decay=decay, warmup_steps=8, maximize=True,
        )  # fmt: skip
    p, g, d, v = x["p"], -x["g"], x["d"], x["v"]
    v = f(0.99) * v + f(1 - 0.99) * (g * g)
    second = 0.99 * ((0.99 * 0.99) * (0.99 * 0.99))  # by squaring
    u = g / (np.sqrt(v) / f(math.sqrt(1 - second)) + f(1e-4))
    u = u + f(decay) * p if decay else u
    u = u * f(0.01 * (5 / 8))
    e = (d - f(0.9) * u) * f(1 - 25 / (1 + 4 + 9 + 16 + 25))
    assert_bits(actual, p=p + ((d - u) - e), d=e, v=v)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 5))


def train(model: nn.Module, optimizer: Any, steps: range = range(100)) -> list[float]:
    losses = []
    dtype = next(model.parameters()).dtype
    for number in steps:
        x = torch.randn(16, 12, generator=torch.Generator().manual_seed(number)).to(dtype)
        optimizer.zero_grad()
        loss = (model(x) - x[:, :5]).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        if number == 60:
            optimizer.eval()
            optimizer.train()
    return losses


@pytest.mark.parametrize(
    "options",
    [{}, {"warmup_steps": 10, "weight_decay": 0.1}, {"warmup_steps": 7, "weight_lr_power": 1.0},
     {"warmup_steps": 200, "weight_lr_power": 0.0, "betas": (0.5, 0.9)}],
    ids=str,
)  # fmt: skip
def test_over_100_steps_it_is_the_authors_package(options: dict[str, Any]) -> None:
    package = pytest.importorskip("schedulefree")
    ours, theirs = net(), net()
    a = AdamWScheduleFree(ours.parameters(), lr=0.01, **options)
    b = package.AdamWScheduleFree(theirs.parameters(), lr=0.01, **options)
    b.train()
    assert train(ours, a) == pytest.approx(train(theirs, b), abs=1e-6)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=1e-5, atol=2e-6)
        z = p + a.state[p]["z_offset"]
        assert torch.allclose(z, b.state[q]["z"], rtol=1e-5, atol=2e-6)
    for optimizer in (a, b):
        optimizer.eval()
        optimizer.eval()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=1e-5, atol=2e-6)


def test_eval_and_train_with_master_weights_change_no_bit() -> None:
    model = net().bfloat16()
    optimizer = AdamWScheduleFree(model.parameters(), lr=0.01, master_weights=True)
    train(model, optimizer, range(3))
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.eval()
    weight = model[0].weight
    state = optimizer.state[weight]
    average = state["master_param"] - state["z_offset"] * (1 / 0.9 - 1)
    assert torch.equal(weight, average.bfloat16())
    optimizer.train()
    for p, q in zip(model.parameters(), before, strict=True):
        assert torch.equal(p, q)


def test_a_checkpoint_of_averages_goes_on() -> None:
    model, twin = net(), net()
    optimizer = AdamWScheduleFree(model.parameters(), lr=0.01)
    train(model, optimizer, range(5))
    optimizer.eval()
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    twin.load_state_dict(saved[0])
    resumed = AdamWScheduleFree(twin.parameters(), lr=0.01)
    resumed.load_state_dict(saved[1])
    for trained in (optimizer, resumed):
        trained.train()
    assert train(model, optimizer, range(5, 9)) == train(twin, resumed, range(5, 9))


def test_fixed_widths_keep_the_weight_in_32_bits() -> None:
    for cls, spec in (
        (AdamWScheduleFree8bit, "B256/geometric@8u+qsr"),
        (AdamWScheduleFree4bit, "B64xbf16/geometric@4u+qsr"),
    ):
        specs = cls([torch.zeros(1)]).param_groups[0]["state_quantizers"]
        assert specs == {"exp_avg_sq": spec}
    param = nn.Parameter(torch.ones(80, 80))
    quantizers = {"z_offset": "B256/DE@8s+sr", "exp_avg_sq": "B256/geometric@8u+qsr"}
    optimizer = AdamWScheduleFree([param], state_quantizers=quantizers)
    for _ in range(3):
        param.grad = torch.linspace(-1, 1, 6400).view(80, 80)
        optimizer.step()
    before = param.detach().clone()
    optimizer.eval()
    offset = optimizer.state[param]["z_offset"].dequantize()
    assert torch.equal(param, before - offset * (1 / 0.9 - 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"betas": (0.0, 0.9)}, "betas[0]=0.0 must be above 0"),
        ({"warmup_steps": -1}, "warmup_steps=-1 must be an int of at least 0"),
        ({"weight_lr_power": 0.5}, "weight_lr_power=0.5 must be 0, 1 or 2"),
        ({"train_mode": 1}, "train_mode=1 must be True or False"),
        ({"master_weights": "bf16+8"},
         "master_weights='bf16+8' stores remainders, which eval() would lose; AdamWScheduleFree "
         "supports True and False"),
    ],
)  # fmt: skip
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        AdamWScheduleFree([torch.zeros(1)], **options)
    assert str(caught.value) == message


def test_a_step_after_eval_is_refused() -> None:
    model = net()
    optimizer = AdamWScheduleFree(model.parameters(), reset_every=2)
    train(model, optimizer, range(2))
    optimizer.eval()
    with pytest.raises(ValueError, match=r"optimizer\.eval") as caught:
        train(model, optimizer, range(1))
    assert "z_offset" in optimizer.state[model[0].weight]  # not reset
    assert str(caught.value) == (
        "the parameters hold averages since optimizer.eval(); call optimizer.train() before a step"
    )
