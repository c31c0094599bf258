"""AdEMAMix with quantized moments."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from qmaps.engines.step_scalars import Lengthened
from qmaps.optim import AdEMAMix, AdEMAMix4bit, AdEMAMix8bit
from tests.optim.one_step import assert_bits, random_arrays, step
from tests.optim.small_net import Matrix, losses

STATES = {"exp_avg": "m", "exp_avg_slow": "n", "exp_avg_sq": "v"}


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("schedules", [False, True])
def test_the_documented_operations(schedules: bool, maximize: bool) -> None:
    f = np.float32
    x = random_arrays("m", "n", "V")
    options = {"lr": 0.01, "betas": (0.9, 0.99, 0.999), "alpha": 6.0, "eps": 1e-4,
               "weight_decay": 0.3, "maximize": maximize}  # fmt: skip
    alpha, beta3 = 6.0, 0.999
    if schedules:
        options |= {"t_alpha": 8, "t_beta3": 50}
        alpha, beta3 = 6.0 * (5 / 8), Lengthened(0.999, 0.9, 50).at(5)
    actual = step(AdEMAMix, x, 4, STATES, **options)
    p, g, m, n, v = x["p"], -x["g"] if maximize else x["g"], x["m"], x["n"], x["v"]
    p = p * f(1 - 0.01 * 0.3)
    m = f(0.9) * m + f(1 - 0.9) * g
    n = f(beta3) * n + f(1 - beta3) * g
    v = f(0.99) * v + f(1 - 0.99) * (g * g)
    # Powers by squaring.
    first, second = (b * ((b * b) * (b * b)) for b in (0.9, 0.99))
    u = f(1 / (1 - first)) * m + f(alpha) * n
    p = p - f(0.01) * (u / (np.sqrt(v) / f(math.sqrt(1 - second)) + f(1e-4)))
    assert_bits(actual, p=p, m=m, n=n, v=v)


@pytest.mark.parametrize("schedules", [{}, {"t_alpha": 80, "t_beta3": 60}], ids=str)
def test_it_follows_the_paper_on_a_small_net(schedules: dict[str, int]) -> None:
    options = {"lr": 3e-3, "betas": (0.9, 0.99, 0.999), "alpha": 5.0, "weight_decay": 0.1}

    def rule(t: int, p: Matrix, g: Matrix, s: dict[str, Matrix]) -> Matrix:
        """Algorithm 1, with the schedules of section 3."""
        alpha, beta3 = 5.0, 0.999
        if schedules:
            alpha = min(t * 5.0 / 80, 5.0)
            a, b = math.log(0.9), math.log(0.999)
            beta3 = min(math.exp(a * b / ((1 - t / 60) * b + t / 60 * a)), 0.999)
        s["m1"] = 0.9 * s.get("m1", 0 * g) + 0.1 * g
        s["m2"] = beta3 * s.get("m2", 0 * g) + (1 - beta3) * g
        s["nu"] = 0.99 * s.get("nu", 0 * g) + 0.01 * g**2
        first, second = s["m1"] / (1 - 0.9**t), s["nu"] / (1 - 0.99**t)
        step = (first + alpha * s["m2"]) / (np.sqrt(second) + 1e-8)
        return p - 3e-3 * (step + 0.1 * p)

    ours, theirs, apart = losses(AdEMAMix, rule, **options, **schedules)
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert apart < 1e-4
    assert ours[-1] < 0.6 * ours[0]


def test_after_its_schedules_it_is_as_without() -> None:
    results = []
    for schedules in ({}, {"t_alpha": 3, "t_beta3": 2}):
        p = nn.Parameter(torch.ones(3))
        optimizer = AdEMAMix([p], **schedules)
        optimizer.state[p] = {"step": torch.tensor(4.0)}
        p.grad = torch.tensor([1.0, -2.0, 3.0])
        optimizer.step()
        results.append(p.detach())
    assert torch.equal(*results)
    # A constant decay has no schedule.
    scalars = AdEMAMix([p], betas=(0.9, 0.99, 0.9), t_beta3=10).scalars(
        {**optimizer.param_groups[0], "betas": (0.9, 0.99, 0.9), "t_beta3": 10}, 1
    )
    assert (scalars["beta3"], scalars["rest3"]) == (0.9, 1 - 0.9)


def test_specs_of_fixed_widths() -> None:
    for cls, signed, unsigned in (
        (AdEMAMix8bit, "B256/DE-sym@8s", "B256/geometric@8u+qsr"),
        (AdEMAMix4bit, "B64xbf16/mu-law10:linear0@4s+qsr", "B64xbf16/geometric@4u+qsr"),
    ):
        assert cls([torch.zeros(1)]).param_groups[0]["state_quantizers"] == {
            "exp_avg": signed, "exp_avg_slow": signed, "exp_avg_sq": unsigned,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": -1.0}, "alpha=-1.0 must be at least 0"),
        ({"betas": (0.9, 0.999)}, "betas=(0.9, 0.999) must be three: of m, of v and of n"),
        ({"betas": (0.9, 0.999, 1.0)}, "betas[2]=1.0 must be at least 0 and below 1"),
        ({"t_alpha": 0}, "t_alpha=0 must be None or an int of at least 1"),
        ({"t_beta3": 1.5}, "t_beta3=1.5 must be None or an int of at least 1"),
        ({"state_quantizers": {"m2": None}},
         "state_quantizers names the state 'm2', but AdEMAMix has exp_avg, exp_avg_slow, "
         "exp_avg_sq"),
    ],
)  # fmt: skip
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        AdEMAMix([torch.zeros(1)], **options)
    assert str(caught.value) == message
