"""LARS with a quantized momentum buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from qmaps.optim import LARS, LARS4bit, LARS8bit
from qmaps.optim.norms import norm
from tests.optim.one_step import Array, assert_bits, random_arrays, step
from tests.optim.small_net import Matrix, losses

STATES = {"momentum_buffer": "b"}


def length(x: Array) -> float:
    return float(norm(torch.from_numpy(x)))


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
@pytest.mark.parametrize("max_unorm", [None, 0.1, 50.0])
def test_the_documented_operations(
    max_unorm: float | None, nesterov: bool, momentum: float, decay: float, maximize: bool
) -> None:
    f = np.float32
    x = random_arrays("b")
    options = {"lr": 0.3, "momentum": momentum, "weight_decay": decay, "nesterov": nesterov,
               "maximize": maximize, "trust_coefficient": 0.02, "max_unorm": max_unorm}  # fmt: skip
    p, g, b = x["p"], -x["g"] if maximize else x["g"], x["b"]
    actual = step(LARS, x, 4, STATES if momentum else {}, **options)
    u = g + f(decay) * p if decay else g
    if max_unorm is None:
        over = length(g) + float(f(decay)) * length(p)
        u = f(float(f(0.02)) * length(p) / over) * u
    states = {}
    if momentum:
        b = f(0.9) * b + u
        states = {"b": b}
        u = u + f(0.9) * b if nesterov else b
    if max_unorm is not None:
        ratio = min(float(f(max_unorm)) * length(p) / length(u), 1.0)
        assert (ratio == 1) == (max_unorm == 50)
        u = f(ratio) * u
    assert_bits(actual, p=p - f(0.3) * u, **states)


@pytest.mark.parametrize("options", [{}, {"nesterov": True}, {"max_unorm": 0.02}], ids=str)
def test_it_follows_the_paper_on_a_small_net(options: dict[str, Any]) -> None:
    rate = 0.3 if "max_unorm" in options else 2.0

    def rule(t: int, p: Matrix, g: Matrix, s: dict[str, Matrix]) -> Matrix:
        """Algorithm 1, with the rate in the buffer; or bitsandbytes' clipping."""
        w, d = np.sqrt((p**2).sum()), np.sqrt((g**2).sum())
        local = 1.0 if "max_unorm" in options else 1e-3 * w / (d + 1e-4 * w)
        step = rate * local * (g + 1e-4 * p)
        s["v"] = 0.9 * s.get("v", 0 * g) + step
        move = step + 0.9 * s["v"] if "nesterov" in options else s["v"]
        if "max_unorm" in options:
            move = move * min(1.0, rate * 0.02 * w / np.sqrt((move**2).sum()))
        return p - move

    ours, theirs, apart = losses(LARS, rule, lr=rate, **options)
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert apart < 1e-4
    assert ours[-1] < 0.6 * ours[0]


@pytest.mark.parametrize("max_unorm", [None, 0.01])
def test_the_ratio_is_1_where_a_norm_is_0(max_unorm: float | None) -> None:
    p = nn.Parameter(torch.zeros(3))
    optimizer = LARS([p], lr=0.5, max_unorm=max_unorm)
    p.grad = torch.tensor([1.0, -2.0, 3.0])
    optimizer.step()
    assert p.tolist() == [-0.5, 1.0, -1.5]
    # Without a gradient, weight decay alone acts as in SGD.
    q = nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = LARS([q], lr=0.5, weight_decay=0.25)
    q.grad = torch.zeros(2)
    optimizer.step()
    assert q.tolist() == [0.875, 1.75]


def test_without_momentum_there_is_no_state() -> None:
    p = nn.Parameter(torch.ones(5000))
    p.grad = torch.ones(5000)
    optimizer = LARS8bit([p], momentum=0)
    optimizer.step()
    assert optimizer.state_nbytes == 0
    assert set(optimizer.state[p]) == {"step"}


def test_specs_of_fixed_widths() -> None:
    for cls, spec in ((LARS8bit, "B256/DE-sym@8s"), (LARS4bit, "B64xbf16/mu-law10:linear0@4s+qsr")):
        group = cls([torch.zeros(1)]).param_groups[0]
        assert group["state_quantizers"] == {"momentum_buffer": spec}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"momentum": -0.1}, "momentum=-0.1 must be at least 0"),
        ({"trust_coefficient": 0.0}, "trust_coefficient=0.0 must be above 0"),
        ({"nesterov": "yes"}, "nesterov='yes' must be True or False"),
        ({"nesterov": True, "momentum": 0}, "nesterov=True needs momentum above 0, got 0"),
        ({"max_unorm": -1}, "max_unorm=-1 must be None or at least 0"),
        ({"state_quantizers": {"exp_avg": None}},
         "state_quantizers names the state 'exp_avg', but LARS has momentum_buffer"),
    ],
)  # fmt: skip
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        LARS([torch.zeros(1)], **options)
    assert str(caught.value) == message
