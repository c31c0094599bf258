"""Lion with a quantized momentum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from qmaps.optim import Lion, Lion4bit, Lion8bit
from tests.optim.one_step import assert_bits, random_arrays, step


@pytest.mark.parametrize("maximize", [False, True])
def test_the_documented_operations(maximize: bool) -> None:
    f = np.float32
    x = random_arrays("m")
    x["g"][:500] = 0
    x["m"][:250] = 0
    options = {"lr": 0.01, "betas": (0.9, 0.98), "weight_decay": 0.3, "maximize": maximize}
    actual = step(Lion, x, 4, {"exp_avg": "m"}, **options)
    p, g, m = x["p"], -x["g"] if maximize else x["g"], x["m"]
    p = p * f(1 - 0.01 * 0.3)
    p = p - f(0.01) * np.sign(f(0.9) * m + f(1 - 0.9) * g)
    m = f(0.98) * m + f(1 - 0.98) * g
    assert_bits(actual, p=p, m=m)


def test_the_sign_of_odd_values() -> None:
    p = nn.Parameter(torch.zeros(6))
    optimizer = Lion([p], lr=0.5, state_quantizers=None)
    # Subnormal, but large enough for a tenth of it to be a number.
    p.grad = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), -1e-40])
    optimizer.step()
    assert str(p.tolist()) == "[0.0, 0.0, -0.5, 0.5, nan, 0.5]"
    assert str(optimizer.state[p]["exp_avg"][2:5].tolist()) == "[inf, -inf, nan]"


def test_rounded_to_the_nearest_the_momentum_stops_where_gradients_vary_little() -> None:
    def trained(make: type[Lion], **options: object) -> float:
        draw = torch.Generator().manual_seed(0)
        a = torch.randn(256, 64, generator=draw) / 8
        y = a @ torch.randn(64, 96, generator=draw)
        weight = nn.Parameter(torch.zeros(64, 96))
        optimizer = make([weight], **options)
        for number in range(500):
            optimizer.param_groups[0]["lr"] = 0.01 * (1 - number / 500)
            weight.grad = a.T @ (a @ weight.detach() - y) * (2 / y.numel())
            optimizer.step()
        return float((a @ weight.detach() - y).square().mean())

    exact = trained(Lion)
    assert trained(Lion8bit) > 10 * exact
    assert trained(Lion, state_quantizers={"exp_avg": "B256/DE-sym@8s+sr"}) < 1.1 * exact


def test_specs_of_fixed_widths() -> None:
    for cls, spec in ((Lion8bit, "B256/DE-sym@8s"), (Lion4bit, "B64xbf16/mu-law10:linear0@4s+qsr")):
        assert cls([torch.zeros(1)]).param_groups[0]["state_quantizers"] == {"exp_avg": spec}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"betas": (1.0, 0.9)}, "betas[0]=1.0 must be at least 0 and below 1"),
        ({"betas": (0.9, float("nan"))}, "betas[1]=nan must be at least 0 and below 1"),
        ({"state_quantizers": {"exp_avg_sq": None}},
         "state_quantizers names the state 'exp_avg_sq', but Lion has exp_avg"),
    ],
)  # fmt: skip
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        Lion([torch.zeros(1)], **options)
    assert str(caught.value) == message
