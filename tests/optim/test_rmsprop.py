"""RMSprop with quantized states."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from qmaps.optim import RMSprop, RMSprop4bit, RMSprop8bit
from tests.optim.one_step import assert_bits, random_arrays, step


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_the_documented_operations(
    momentum: float, centered: bool, decay: float, maximize: bool
) -> None:
    f = np.float32
    # Squares of a and averages of squares are unrelated here, so that some variances are negative.
    x = random_arrays("V", "b", "a")
    names = {"square_avg": "v"}
    if momentum:
        names["momentum_buffer"] = "b"
    if centered:
        names["grad_avg"] = "a"
    actual = step(RMSprop, x, 4, names, lr=0.01, alpha=0.9, eps=1e-3, weight_decay=decay,
                 momentum=momentum, centered=centered, maximize=maximize)  # fmt: skip
    p, g, v, b, a = (x[name] for name in "pgvba")
    g = -g if maximize else g
    if decay:
        g = g + f(0.1) * p
    v = f(0.9) * v + f(1 - 0.9) * (g * g)
    w = v
    if centered:
        a = f(0.9) * a + f(1 - 0.9) * g
        w = v - a * a
        assert 100 < (w < 0).sum() < 3900
        w = np.where(w < 0, v, w)
    u = g / (np.sqrt(w) + f(1e-3))
    if momentum:
        u = b = f(0.8) * b + u
    expected = {"p": p - f(0.01) * u, "v": v, "b": b, "a": a}
    assert_bits(actual, **{name: expected[name] for name in ("p", *names.values())})


def test_quantized_variances_stay_usable() -> None:
    """With nearly constant gradients v - a * a is rounding alone; torch would get NaN."""
    p = nn.Parameter(torch.zeros(8192))
    optimizer = RMSprop8bit([p], lr=1e-3, alpha=0.9, centered=True)
    level = torch.rand(8192, generator=torch.Generator().manual_seed(0)) + 0.1
    for _ in range(60):
        p.grad = level.clone()
        optimizer.step()
    average, squares = (
        optimizer.state[p][name].dequantize() for name in ("grad_avg", "square_avg")
    )
    assert int((squares < average * average).sum()) > 100
    assert bool(p.isfinite().all())


def test_a_variance_of_zero_counts_as_in_torch() -> None:
    results = []
    for cls in (RMSprop, torch.optim.RMSprop):
        p = nn.Parameter(torch.zeros(3))
        # Without memory the average is the gradient itself.
        optimizer = cls([p], alpha=0.0, eps=0.5, centered=True)
        p.grad = torch.tensor([1.0, -2.0, 0.0])
        optimizer.step()
        results.append(p.detach())
    assert torch.equal(*results)


def test_nan_is_no_small_variance() -> None:
    p = nn.Parameter(torch.zeros(2))
    optimizer = RMSprop([p], centered=True, state_quantizers=None)
    p.grad = torch.tensor([float("nan"), 1.0])
    optimizer.step()
    assert p.isnan().tolist() == [True, False]


def test_specs_of_fixed_widths() -> None:
    for cls, unsigned, signed in (
        (RMSprop8bit, "B256/geometric@8u+qsr", "B256/DE-sym@8s"),
        (RMSprop4bit, "B64xbf16/geometric@4u+qsr", "B64xbf16/mu-law10:linear0@4s+qsr"),
    ):
        group = cls([torch.zeros(1)]).param_groups[0]
        assert group["state_quantizers"] == {
            "square_avg": unsigned, "momentum_buffer": signed, "grad_avg": signed,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 1.0}, "alpha=1.0 must be at least 0 and below 1"),
        ({"alpha": -0.1}, "alpha=-0.1 must be at least 0 and below 1"),
        ({"eps": -1.0}, "eps=-1.0 must be at least 0"),
        ({"momentum": -0.1}, "momentum=-0.1 must be at least 0"),
        ({"centered": 1}, "centered=1 must be True or False"),
        ({"state_quantizers": {"sum": None}},
         "state_quantizers names the state 'sum', but RMSprop has square_avg, "
         "momentum_buffer, grad_avg"),
    ],
)  # fmt: skip
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        RMSprop([torch.zeros(1)], **options)
    assert str(caught.value) == message
