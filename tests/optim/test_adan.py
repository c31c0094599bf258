"""Adan, beside its authors' code."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from qmaps.optim import Adan, Adan4bit, Adan8bit
from tests.optim.small_run import gradient, start

# `adan.py` of the repository sail-sg/Adan at commit 2c65bea, with foreach=False and lr=0.05, in
# float32 on a CPU, with torch 2.13: where the last two of three parameters end after 20 steps.
USUAL = (
    {},
    [-0.030438, -0.052248, -0.005573, 0.038811, -0.201315, -0.056156, 0.048002, -0.344364,
     0.046911, -0.108789, -0.004071, -0.023739],
    [-0.056479, -0.004568, -0.001308, 0.079322],
)  # fmt: skip
OTHER = (
    {"betas": (0.9, 0.8, 0.95), "weight_decay": 0.1},
    [-0.034322, -0.049476, 0.00567, 0.041267, -0.179928, -0.058263, 0.024553, -0.226664, 0.060961,
     -0.102139, -0.005718, -0.022609],
    [-0.067, -0.025435, -0.011079, 0.044368],
)  # fmt: skip
DECAYED = (
    {"weight_decay": 0.1, "no_prox": True},
    [-0.017858, -0.045904, -0.009022, 0.016824, -0.163771, -0.041151, 0.042616, -0.335404,
     0.022516, -0.079858, 0.003896, -0.022773],
    [-0.030994, 0.007522, 0.00353, 0.076665],
)  # fmt: skip


@pytest.mark.parametrize(("options", "second", "third"), [USUAL, OTHER, DECAYED])
def test_32_bits_go_where_the_authors_go(
    options: dict[str, object], second: list[float], third: list[float]
) -> None:
    params = [nn.Parameter(x) for x in start()]
    optimizer = Adan(params, lr=0.05, **options)
    for step in range(1, 21):
        for i, param in enumerate(params):
            param.grad = gradient(step, i, param.detach())
        optimizer.step()
    for ours, theirs in zip(params[1:], (second, third), strict=True):
        torch.testing.assert_close(ours.detach().flatten(), torch.tensor(theirs), rtol=0, atol=2e-6)


def test_specs_of_fixed_widths() -> None:
    for cls, signed, unsigned in (
        (Adan8bit, "B256/DE-sym@8s", "B256/geometric@8u+qsr"),
        (Adan4bit, "B64xbf16/mu-law10:linear0@4s+qsr", "B64xbf16/geometric@4u+qsr"),
    ):
        assert cls([torch.zeros(1)]).param_groups[0]["state_quantizers"] == {
            "exp_avg": signed,
            "exp_avg_diff": signed,
            "exp_avg_sq": unsigned,
            "neg_pre_grad": signed,
        }


def test_the_first_gradient_has_no_change() -> None:
    param = nn.Parameter(torch.randn(8))
    optimizer = Adan([param])
    for step, change in ((1, 0), (2, 1)):
        param.grad = torch.full((8,), float(step))
        optimizer.step()
        actual = optimizer.state[param]["exp_avg_diff"]
        torch.testing.assert_close(actual, torch.full((8,), 0.08 * change))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"betas": (0.9, 0.999)}, "betas=(0.9, 0.999) must be three: of m, of n and of v"),
        ({"eps": -1.0}, "eps=-1.0 must be at least 0"),
        ({"no_prox": 1}, "no_prox=1 must be True or False"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        Adan([torch.zeros(1)], **options)
    assert str(caught.value) == message
