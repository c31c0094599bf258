"""SGD with a quantized momentum buffer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from qmaps.optim import SGD, SGD4bit, SGD8bit
from tests.optim.families import same_bits
from tests.optim.one_step import assert_bits, random_arrays, step

STATES = {"momentum_buffer": "b"}


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_the_documented_operations(decay: float, maximize: bool) -> None:
    f = np.float32
    x = random_arrays("b")
    options = {"lr": 0.3, "weight_decay": decay, "maximize": maximize}
    p, g, b = x["p"], -x["g"] if maximize else x["g"], x["b"]
    if decay:
        g = g + f(0.1) * p
    assert_bits(step(SGD, x, 4, {}, **options), p=p - f(0.3) * g)
    actual = step(SGD, x, 4, STATES, momentum=0.9, dampening=0.2, **options)
    damped = f(0.9) * b + f(1 - 0.2) * g
    assert_bits(actual, p=p - f(0.3) * damped, b=damped)
    actual = step(SGD, x, 4, STATES, momentum=0.9, nesterov=True, **options)
    b = f(0.9) * b + g
    assert_bits(actual, p=p - f(0.3) * (g + f(0.9) * b), b=b)
    actual = step(SGD, x, 0, STATES, momentum=0.9, dampening=0.2, **options)
    assert_bits(actual, p=p - f(0.3) * g, b=g)
    actual = step(SGD, x, 0, STATES, momentum=0.9, nesterov=True, **options)
    assert_bits(actual, p=p - f(0.3) * (g + f(0.9) * g), b=g)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_first_step_has_torchs_bits_for_odd_values(momentum: float) -> None:
    odd = torch.tensor([0.0, -0.0, 1.0, float("inf"), -float("inf"), float("nan"), -1e-42])
    results = []
    for cls, extra in ((SGD, {}), (torch.optim.SGD, {"foreach": False})):
        p = nn.Parameter(odd.repeat_interleave(7))
        optimizer = cls([p], lr=0.5, momentum=momentum, dampening=0.7 * momentum, **extra)
        p.grad = odd.repeat(7)
        optimizer.step()
        results.append((p.detach(), optimizer.state[p].get("momentum_buffer", odd)))
    for ours, theirs in zip(*results, strict=True):
        assert same_bits(ours, theirs)


def test_without_momentum_there_is_no_state() -> None:
    p = nn.Parameter(torch.ones(5000))
    p.grad = torch.ones(5000)
    optimizer = SGD8bit([p])
    optimizer.step()
    assert optimizer.state_nbytes == 0
    assert set(optimizer.state[p]) == {"step"}


def test_momentum_that_comes_later_and_rests_meanwhile() -> None:
    p = nn.Parameter(torch.zeros(2))
    optimizer = SGD([p], lr=1.0, state_quantizers=None)
    for momentum, buffer in ((0.0, None), (0.5, 1.0), (0.0, 1.0), (0.5, 1.5)):
        optimizer.param_groups[0]["momentum"] = momentum
        p.grad = torch.ones(2)
        optimizer.step()
        actual = optimizer.state[p].get("momentum_buffer")
        assert (actual if actual is None else actual.tolist()) == (buffer and [buffer, buffer])


def test_old_checkpoints_of_torch_name_buffers_that_are_not_there() -> None:
    p = nn.Parameter(torch.zeros(2))
    saved = torch.optim.SGD([p]).state_dict()
    saved["state"] = {0: {"momentum_buffer": None}}
    optimizer = SGD([p])
    optimizer.load_state_dict(saved)
    assert optimizer.state[p] == {}
    p.grad = torch.ones(2)
    optimizer.step()
    assert p.tolist() == [torch.tensor(-1e-3).item()] * 2


def test_specs_of_fixed_widths() -> None:
    for cls, spec in ((SGD8bit, "B256/DE-sym@8s"), (SGD4bit, "B64xbf16/mu-law10:linear0@4s+qsr")):
        group = cls([torch.zeros(1)]).param_groups[0]
        assert group["state_quantizers"] == {"momentum_buffer": spec}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"momentum": -0.1}, "momentum=-0.1 must be at least 0"),
        ({"dampening": float("inf")}, "dampening=inf must be finite"),
        ({"nesterov": "yes"}, "nesterov='yes' must be True or False"),
        ({"nesterov": True},
         "nesterov=True needs momentum above 0 and dampening 0, but momentum is 0 and "
         "dampening is 0"),
        ({"nesterov": True, "momentum": 0.9, "dampening": 0.5},
         "nesterov=True needs momentum above 0 and dampening 0, but momentum is 0.9 and "
         "dampening is 0.5"),
        ({"state_quantizers": {"exp_avg": None}},
         "state_quantizers names the state 'exp_avg', but SGD has momentum_buffer"),
    ],
)  # fmt: skip
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        SGD([torch.zeros(1)], **options)
    assert str(caught.value) == message
