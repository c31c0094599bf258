"""Adagrad with a quantized sum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from qmaps.optim import Adagrad, Adagrad4bit, Adagrad8bit
from tests.optim.one_step import assert_bits, random_arrays, step

STATES = {"sum": "v"}


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_the_documented_operations(decay: float, maximize: bool) -> None:
    f = np.float32
    x = random_arrays("V")
    options = {"lr": 0.01, "lr_decay": 0.3, "eps": 1e-3, "initial_accumulator_value": 0.7,
               "weight_decay": decay, "maximize": maximize}  # fmt: skip
    p, g = x["p"], -x["g"] if maximize else x["g"]
    if decay:
        g = g + f(0.1) * p
    for steps, v in ((4, x["v"]), (0, np.full_like(p, 0.7))):
        actual = step(Adagrad, x, steps, STATES, **options)
        v = v + g * g
        moved = p - f(0.01 / (1 + steps * 0.3)) * (g / (np.sqrt(v) + f(1e-3)))
        assert_bits(actual, p=moved, v=v)


def test_the_sum_starts_from_the_value_before_it_is_encoded() -> None:
    # A codebook without 1 could not hold the initial value.
    p = nn.Parameter(torch.zeros(5000))
    p.grad = torch.linspace(0, 1, 5000)
    quantizer = {"sum": "B64/linear@3u"}
    optimizer = Adagrad([p], initial_accumulator_value=0.3, state_quantizers=quantizer)
    exact = 0.3 + p.grad * p.grad
    optimizer.step()
    torch.testing.assert_close(p.detach(), -0.01 * (p.grad / exact.sqrt()), rtol=1e-6, atol=0)


def test_stochastic_rounding_lets_the_sum_go_on() -> None:
    """Increments far below half a code; one of 5000 elements keeps the scale at 1."""
    sums = {}
    for rounding in ("", "+sr"):
        p = nn.Parameter(torch.zeros(5000))
        quantizer = {"sum": f"tensor/linear@8u{rounding}"}
        optimizer = Adagrad([p], initial_accumulator_value=0.5, state_quantizers=quantizer)
        for number in range(100):
            p.grad = torch.full((5000,), 0.02)
            p.grad[0] = 0.5**0.5 if number == 0 else 0.0
            optimizer.step()
        sums[rounding] = float(optimizer.state[p]["sum"].dequantize()[1:].double().mean())
    assert sums[""] == 0.5
    # One rounding has a variance of at most 4e-4 / 256; 2e-9 of seeds lie beyond six deviations.
    assert abs(sums["+sr"] - 0.54) < 6 * (100 * 4e-4 / 256 / 4999) ** 0.5


@pytest.mark.parametrize("make", [Adagrad, torch.optim.Adagrad])
def test_a_distributed_checkpoint_made_before_the_first_step_counts_none(make: type) -> None:
    """`get_optimizer_state_dict` steps optimizers without states; torch's always has them."""
    distributed = pytest.importorskip("torch.distributed.checkpoint.state_dict")
    layer = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(layer.weight)
    optimizer = make(layer.parameters(), lr=1.0, lr_decay=0.5)
    saved = distributed.get_optimizer_state_dict(layer, optimizer)
    assert set(saved["state"]["weight"]) == {"step", "sum"}
    assert saved["state"]["weight"]["step"] == 0
    for expected in (-1.0, -1.0 - 0.5**0.5 / 1.5):
        layer.weight.grad = torch.ones(1, 1)
        optimizer.step()
        assert float(layer.weight.detach()) == pytest.approx(expected)
    # A step with lr=0 and gradients other than 0 counts.
    fresh = make([nn.Parameter(torch.zeros(2))], lr=0.0)
    (param,) = fresh.param_groups[0]["params"]
    param.grad = torch.ones(2)
    fresh.step()
    assert fresh.state[param]["step"] == 1


def test_specs_of_fixed_widths() -> None:
    for cls, spec in (
        (Adagrad8bit, "B256/geometric@8u+qsr"),
        (Adagrad4bit, "B64xbf16/geometric@4u+qsr"),
    ):
        assert cls([torch.zeros(1)]).param_groups[0]["state_quantizers"] == {"sum": spec}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr_decay": -0.1}, "lr_decay=-0.1 must be at least 0"),
        ({"initial_accumulator_value": -1},
         "initial_accumulator_value=-1 must be at least 0"),
        ({"eps": -1.0}, "eps=-1.0 must be at least 0"),
        ({"state_quantizers": {"exp_avg": None}},
         "state_quantizers names the state 'exp_avg', but Adagrad has sum"),
    ],
)  # fmt: skip
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        Adagrad([torch.zeros(1)], **options)
    assert str(caught.value) == message
