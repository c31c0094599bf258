"""Adafactor in 32 bits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from qmaps.optim import Adafactor
from tests.optim.adafactor_reference import adafactor, assert_close
from tests.optim.families import run
from tests.optim.one_step import Array, assert_bits, random_arrays, step

f = np.float32
SHAPES = ((30, 20), (3, 4, 5), (1, 9), (11,), ())


def rounded(x: Array, axis: int | None = None) -> Any:
    """Mean of the elements: exact sums, rounded to float32."""
    if axis is None:
        return f(math.fsum(x.astype(float).reshape(-1)) / x.size)
    return np.apply_along_axis(rounded, axis, x)


def rms(x: Array) -> Any:
    return f(math.sqrt(math.fsum(x.astype(float).reshape(-1) ** 2) / x.size))


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("factored", [False, True])
@pytest.mark.parametrize("scale", [False, True])
def test_the_documented_operations(scale: bool, factored: bool, maximize: bool) -> None:
    x = random_arrays("m", "V")
    v = x["v"]
    x = {name: value.reshape(50, 80) for name, value in x.items()}
    x |= {"r": v[:50].reshape(50, 1), "c": v[50:130].reshape(1, 80)}
    names = {"exp_avg": "m"} | ({"row_var": "r", "col_var": "c"} if factored else {"variance": "v"})
    actual = step(
        Adafactor, x, 200, names, lr=0.1, beta1=0.8, weight_decay=0.3, eps=(1e-3, 0.5), d=0.25,
        scale_parameter=scale, scale_weight_decay=scale, factored=factored, maximize=maximize,
    )  # fmt: skip
    p, g, m, r, c, v = (x[name] for name in "pgmrcv")
    g = -g if maximize else g
    rho = f(201**-0.5)
    alpha = max(rms(p), f(0.5)) * rho if scale else rho
    p = p * (f(1) - alpha * f(0.3))
    q = g * g + f(1e-3)
    decay, share = f(1 - 201**-0.8), f(201**-0.8)
    if factored:
        r = r * decay + rounded(q, 1)[:, None] * share
        c = c * decay + rounded(q, 0)[None, :] * share
        u = g / (np.sqrt(r / rounded(r, 0)) * np.sqrt(c))
    else:
        v = v * decay + q * share
        u = g / np.sqrt(v)
    assert rms(u) > 0.25
    u = u / (rms(u) / f(0.25))
    m = m * f(0.8) + u * f(1 - 0.8)
    p = p - m * alpha
    assert_bits(actual, p=p, m=m, **({"r": r, "c": c} if factored else {"v": v}))


OPTIONS: list[dict[str, Any]] = [
    {},
    {"beta1": 0.9, "weight_decay": 0.1, "maximize": True},
    {"beta2": 0.99, "scale_parameter": False, "lr": 3e-3, "d": 0.7},
    {"relative_step": False, "lr": 0.3, "beta1": 0.5, "weight_decay": 0.1},
    {"relative_step": True, "lr": 0.3, "scale_weight_decay": False, "weight_decay": 0.1},
    {"factored": False, "beta2_decay": -0.5},
    {"fira_margin": 0.02, "d": 100.0},
    {"fira_margin": 0.0, "beta1": 0.9, "factored": False},
    {"beta1": 0.9, "beta3": 0.99, "lr": 1e-3},
    {"beta1": 0.9, "beta2": 0.99, "beta3": 0.9, "fira_margin": 0.01, "lr": 1e-3},
]


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_100_steps_are_those_of_the_papers(options: dict[str, Any]) -> None:
    start, _, _ = run(Adafactor, options, 0, SHAPES)
    params, _, grads = run(Adafactor, options, 100, SHAPES)
    for before, p, history in zip(start, params, grads, strict=True):
        origin = before.detach().double().numpy()
        exact = adafactor(origin, [g.double().numpy() for g in history], **options)
        assert_close(p.detach().numpy(), exact, origin)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {}),
        ({"lr": 3e-3, "d": 2.0, "beta2_decay": -0.5, "maximize": True}, {}),
        ({"weight_decay": 0.1, "scale_weight_decay": False}, {"weight_decay": 0.1}),
    ],
    ids=str,
)
def test_it_is_torch_over_100_steps_where_options_coincide(
    ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    """The floor of torch's second moment is too low to matter here."""
    coincide = {name: value for name, value in ours.items() if name != "scale_weight_decay"}
    params, a, _ = run(Adafactor, ours, 100, SHAPES)
    twins, b, _ = run(torch.optim.Adafactor, {**coincide, **theirs, "eps": (1e-15, 1e-3)}, 100,
                      SHAPES)  # fmt: skip
    for p, q in zip(params, twins, strict=True):
        torch.testing.assert_close(p, q, rtol=2e-6, atol=2e-6)
        assert set(a.state[p]) == set(b.state[q])
        for name, value in b.state[q].items():
            # Counters are float64 here, float32 there.
            torch.testing.assert_close(
                a.state[p][name], value, rtol=2e-6, atol=1e-6, check_dtype=name != "step"
            )


def test_a_torch_checkpoint_goes_on() -> None:
    options = {"d": 1.5, "weight_decay": 0.1}
    theirs, reference, _ = run(torch.optim.Adafactor, options, 5, SHAPES)
    ours = [nn.Parameter(p.detach().clone()) for p in theirs]
    optimizer = Adafactor(ours)
    optimizer.load_state_dict(reference.state_dict())
    assert optimizer.param_groups[0]["eps"] == (None, 1e-3)
    assert optimizer.param_groups[0]["d"] == 1.5
    assert not optimizer.param_groups[0]["scale_weight_decay"]
    for _ in range(5):
        for p, q in zip(ours, theirs, strict=True):
            q.grad = torch.randn(q.shape, generator=torch.Generator().manual_seed(3))
            p.grad = q.grad.clone()
        optimizer.step()
        reference.step()
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=2e-6, atol=2e-6)


def test_zero_gradients_and_nan() -> None:
    p = nn.Parameter(torch.ones(4, 5))
    optimizer = Adafactor([p], eps=(0.0, 1e-3), beta1=0.9, beta3=0.9, came_eps=0.0)
    p.grad = torch.zeros(4, 5)
    optimizer.step()
    assert torch.equal(p, torch.ones(4, 5))
    p.grad[1, 2] = math.nan
    for _ in range(2):
        optimizer.step()
        assert bool(p[1, 2].isnan())
        p.grad = torch.zeros(4, 5)


def test_the_limiter_lets_a_norm_grow_by_its_margin() -> None:
    p = nn.Parameter(torch.zeros(50))
    optimizer = Adafactor([p], fira_margin=0.5, relative_step=False, lr=1.0, scale_parameter=False,
                          d=1e9, beta2=0.9)  # fmt: skip
    norms = []
    for size in (1.0, 1e-3, 1.0, 1.0, 0.0, 2.0):
        before = p.detach().clone()
        p.grad = torch.full((50,), size)
        optimizer.step()
        norms.append(float((p.detach() - before).norm()))
        assert float(optimizer.state[p]["update_norm"]) == pytest.approx(norms[-1], rel=1e-4)
    assert norms[2] == pytest.approx(1.5 * norms[1], rel=1e-4)
    assert norms[3] == pytest.approx(1.5 * norms[2], rel=1e-4)
    assert norms[4] == 0
    assert norms[5] > 7  # after an update of nothing there is no limit


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr=-1.0 must be at least 0"),
        ({"lr": None},
         "lr=None must be a number of at least 0; with relative_step=True it is the largest "
         "step size, 0.01 in the paper"),
        ({"beta2_decay": 0.1}, "beta2_decay=0.1 must be at most 0"),
        ({"eps": (-1.0, 1e-3)}, "eps[0]=-1.0 must be at least 0, or None for 1e-30"),
        ({"eps": (None, -1.0)}, "eps[1]=-1.0 must be at least 0"),
        ({"d": 0}, "d=0 must be above 0"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1 must be at least 0"),
        ({"beta1": 1.0}, "beta1=1.0 must be at least 0 and below 1"),
        ({"beta2": -0.1}, "beta2=-0.1 must be at least 0 and below 1"),
        ({"beta3": 2}, "beta3=2 must be at least 0 and below 1"),
        ({"came_eps": -1}, "came_eps=-1 must be at least 0"),
        ({"relative_step": 1}, "relative_step=1 must be True or False"),
        ({"scale_parameter": None}, "scale_parameter=None must be True or False"),
        ({"scale_weight_decay": "no"}, "scale_weight_decay='no' must be True or False"),
        ({"factored": 0}, "factored=0 must be True or False"),
        ({"apollo_factorize": 0}, "apollo_factorize=0 must be True or False"),
        ({"fira_margin": -0.5}, "fira_margin=-0.5 must be None or at least 0"),
        ({"apollo_rank": -1}, "apollo_rank=-1 must be an int of at least 0"),
        ({"apollo_rank": True}, "apollo_rank=True must be an int of at least 0"),
        ({"apollo_update_proj_gap": 0}, "apollo_update_proj_gap=0 must be an int of at least 1"),
        ({"apollo_scale": -1.0}, "apollo_scale=-1.0 must be at least 0"),
        ({"apollo_scale_type": "row"},
         "apollo_scale_type='row' must be one of 'channel', 'tensor'"),
        ({"beta3": 0.9},
         "beta3=0.9 needs beta1 above 0, factored=True and apollo_rank=0, but beta1 is None"),
        ({"beta3": 0.9, "beta1": 0.9, "factored": False},
         "beta3=0.9 needs beta1 above 0, factored=True and apollo_rank=0, but factored is False"),
        ({"beta3": 0.9, "beta1": 0.9, "apollo_rank": 4},
         "beta3=0.9 needs beta1 above 0, factored=True and apollo_rank=0, but apollo_rank is 4"),
    ],
    ids=str,
)  # fmt: skip
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        Adafactor([torch.zeros(1)], **options)
    assert str(caught.value) == message
