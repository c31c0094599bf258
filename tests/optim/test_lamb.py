"""LAMB with quantized moments."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from qmaps.ops.backends import use_backend
from qmaps.optim import LAMB, LARS, LAMB4bit, LAMB8bit, QuantizedOptimizer
from qmaps.optim.norms import norm
from tests.optim.one_step import Array, assert_bits, random_arrays, step
from tests.optim.small_net import Matrix, losses

STATES = {"exp_avg": "m", "exp_avg_sq": "v"}


def length(x: Array) -> float:
    return float(norm(torch.from_numpy(x)))


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("corrects", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize(
    "bounds", [{}, {"trust_clip": 0.05}, {"max_unorm": 0.4}, {"max_unorm": 9.0}], ids=str
)
def test_the_documented_operations(
    bounds: dict[str, float], decay: float, corrects: bool, maximize: bool
) -> None:
    f = np.float32
    x = random_arrays("m", "V")
    options = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-4, "weight_decay": decay,
               "bias_correction": corrects, "maximize": maximize}  # fmt: skip
    actual = step(LAMB, x, 4, STATES, **options, **bounds)
    p, g, m, v = x["p"], -x["g"] if maximize else x["g"], x["m"], x["v"]
    m = f(0.9) * m + f(1 - 0.9) * g
    v = f(0.99) * v + f(1 - 0.99) * (g * g)
    # Powers by squaring.
    first, second = (b * ((b * b) * (b * b)) for b in (0.9, 0.99))
    correction, root = (1 / (1 - first), math.sqrt(1 - second)) if corrects else (1.0, 1.0)
    r = (m / (np.sqrt(v) / f(root) + f(1e-4))) * f(correction)
    if decay:
        r = r + f(decay) * p
    ratio = length(p) / length(r)
    if "trust_clip" in bounds:
        assert ratio > 0.05
        ratio = float(f(0.05))
    if "max_unorm" in bounds:
        ratio = min(float(f(bounds["max_unorm"])) * length(p) / length(r), 1.0)
        assert (ratio == 1) == (bounds["max_unorm"] == 9)
    assert_bits(actual, p=p - (f(ratio) * f(0.01)) * r, m=m, v=v)


@pytest.mark.parametrize(
    "options", [{}, {"bias_correction": False}, {"trust_clip": 0.5}, {"max_unorm": 1.0}], ids=str
)
def test_it_follows_the_paper_on_a_small_net(options: dict[str, Any]) -> None:
    def rule(t: int, p: Matrix, g: Matrix, s: dict[str, Matrix]) -> Matrix:
        """Algorithm 2; the bound is the paper's phi, or bitsandbytes' clipping."""
        s["m"] = 0.9 * s.get("m", 0 * g) + 0.1 * g
        s["v"] = 0.999 * s.get("v", 0 * g) + 0.001 * g**2
        m, v = s["m"], s["v"]
        if options.get("bias_correction", True):
            m, v = m / (1 - 0.9**t), v / (1 - 0.999**t)
        r = m / (np.sqrt(v) + 1e-6)
        update = r + 0.01 * p
        ratio = np.sqrt((p**2).sum()) / np.sqrt((update**2).sum())
        if "trust_clip" in options:
            ratio = min(ratio, 0.5)
        if "max_unorm" in options:
            ratio = min(ratio, 1.0)
        return p - 0.02 * ratio * update

    ours, theirs, apart = losses(LAMB, rule, lr=0.02, **options)
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert apart < 1e-4
    assert ours[-1] < 0.6 * ours[0]


@pytest.mark.parametrize("bounds", [{}, {"trust_clip": 0.01}, {"max_unorm": 0.01}], ids=str)
def test_the_ratio_is_1_where_a_norm_is_0(bounds: dict[str, float]) -> None:
    p = nn.Parameter(torch.zeros(3))
    optimizer = LAMB([p], lr=0.5, eps=0.0, **bounds)
    p.grad = torch.tensor([1.0, -2.0, 3.0])
    optimizer.step()
    assert p.tolist() == pytest.approx([-0.5, 0.5, -0.5], rel=1e-6)
    q = nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = LAMB([q], weight_decay=0, **bounds)
    q.grad = torch.zeros(2)
    optimizer.step()
    assert q.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize("make", [LAMB, LARS], ids=lambda make: make.__name__)
def test_the_ratio_is_1_where_it_overflows(make: type[QuantizedOptimizer], engine: str) -> None:
    """After 790 steps of zero gradients moments are barely above 0."""
    p = nn.Parameter(torch.tensor([1.0, 2.0, 0.0, 1e4]))
    optimizer = make([p], weight_decay=0.0)
    steps = [(1e-42, 0.5), (1e-42, 0.0), (0.0, 1.0)]
    steps += [(1e-34, 1e9)] * (make is LAMB)  # here lr * trust overflows, and the ratio does not
    with use_backend(engine):
        for gradient, lr in steps:
            optimizer.param_groups[0]["lr"] = lr
            p.grad = torch.tensor([gradient, 0.0, 0.0, 0.0])
            optimizer.step()
            assert p.tolist() == [1.0, 2.0, 0.0, 1e4]
        # A NaN ratio stays, so NaN in gradients is not hidden.
        p.grad = torch.tensor([0.0, 0.0, 0.0, torch.nan])
        optimizer.step()
    assert p.isnan().all()


def test_every_parameter_has_a_ratio_of_its_own() -> None:
    params = [nn.Parameter(torch.full((200,), size)) for size in (0.01, 1.0, 100.0)]
    before = [p.detach().clone() for p in params]
    optimizer = LAMB(params, lr=0.1)
    for p in params:
        p.grad = torch.randn(200, generator=torch.Generator().manual_seed(0))
    optimizer.step()
    for p, q in zip(params, before, strict=True):
        assert float((p.detach() - q).norm() / q.norm()) == pytest.approx(0.1, rel=1e-6)


def test_specs_of_fixed_widths() -> None:
    for cls, signed, unsigned in (
        (LAMB8bit, "B256/DE-sym@8s", "B256/geometric@8u+qsr"),
        (LAMB4bit, "B64xbf16/mu-law10:linear0@5s+qsr", "B64xbf16/geometric@3u+qsr"),
    ):
        actual = cls([torch.zeros(1)]).param_groups[0]["state_quantizers"]
        assert actual == {"exp_avg": signed, "exp_avg_sq": unsigned}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"betas": (0.9, 1.0)}, "betas[1]=1.0 must be at least 0 and below 1"),
        ({"eps": -1e-6}, "eps=-1e-06 must be at least 0"),
        ({"bias_correction": 1}, "bias_correction=1 must be True or False"),
        ({"trust_clip": 0.0}, "trust_clip=0.0 must be None or above 0"),
        ({"max_unorm": float("nan")}, "max_unorm=nan must be None or at least 0"),
        ({"trust_clip": 1.0, "max_unorm": 2.0},
         "trust_clip=1.0 and max_unorm=2.0 exclude each other; set only one of them"),
        ({"state_quantizers": {"sum": None}},
         "state_quantizers names the state 'sum', but LAMB has exp_avg, exp_avg_sq"),
    ],
)  # fmt: skip
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        LAMB([torch.zeros(1)], **options)
    assert str(caught.value) == message
