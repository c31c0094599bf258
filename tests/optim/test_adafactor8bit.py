"""Adafactor with second moments in log2 space."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import qmaps
from qmaps.algebra.philox import RoundingKey
from qmaps.optim import Adafactor, Adafactor8bit
from tests.optim.families import floats, run


def test_quantizers_of_states() -> None:
    shapes = ((5000, 2), (5000,), (90, 80), (30,))
    log, first = "logB256/log2(in_log=true)@8u+qsr", "B128/DE-sym@8s"
    low = "logB128/log2(in_log=true)@8u+qsr"
    cases = (
        ({}, [{"row_var": log, "col_var": None}, {"variance": log},
              {"row_var": None, "col_var": None}, {"variance": None}]),
        ({"factored": False, "beta1": 0.9},
         [{"variance": log, "exp_avg": first}] * 3 + [{"variance": None, "exp_avg": None}]),
        ({"apollo_rank": 64, "beta1": 0.9, "block_size": 128},
         [{"low_variance": low, "low_exp_avg": first, "update_norm": None},
          {"variance": "logB128/log2(in_log=true)@8u+qsr", "exp_avg": first},
          {"low_variance": low, "low_exp_avg": first, "update_norm": None},
          {"variance": None, "exp_avg": None}]),
        ({"apollo_rank": 64, "apollo_factorize": True, "blocksize": 128},
         [{"low_row_var": None, "low_col_var": None, "update_norm": None},
          {"variance": "logB128/log2(in_log=true)@8u+qsr"},
          {"low_row_var": None, "low_col_var": None, "update_norm": None}, {"variance": None}]),
        ({"beta1": 0.9, "beta3": 0.99},
         [{"row_var": log, "col_var": None, "exp_avg": first, "residual_row": log,
           "residual_col": None}, {"variance": log, "exp_avg": first},
          {"row_var": None, "col_var": None, "exp_avg": first, "residual_row": None,
           "residual_col": None}, {"variance": None, "exp_avg": None}]),
    )  # fmt: skip
    for options, expected in cases:
        params, optimizer, _ = run(Adafactor8bit, options, 1, shapes)
        results = []
        for p in params:
            state = dict(optimizer.state[p])
            del state["step"]
            specs = {name: getattr(value, "quantizer", None) for name, value in state.items()}
            results.append({name: q if q is None else str(q) for name, q in specs.items()})
        # The first parameter has (5000, 2): a low rank of 2 means 10000 elements.
        assert results == expected
        assert optimizer.state_nbytes == sum(
            value.nbytes
            for state in optimizer.state.values()
            for name, value in state.items()
            if name != "step"
        )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"factored": False, "beta1": 0.9},
        {"beta1": 0.9, "beta3": 0.9},
        {"apollo_rank": 8, "beta1": 0.9},
        {"apollo_rank": 8, "apollo_factorize": True},
    ],
    ids=str,
)
def test_a_step_decodes_updates_and_encodes(options: dict[str, object]) -> None:
    shapes = ((300, 20), (200,), ())
    params, optimizer, _ = run(Adafactor8bit, {**options, "min_quantized_size": 10}, 3, shapes)
    twins = [nn.Parameter(p.detach().clone()) for p in params]
    exact = Adafactor(twins, **options)  # type: ignore[arg-type]
    for p, twin in zip(params, twins, strict=True):
        exact.state[twin] = {
            name: floats(value).clone() for name, value in optimizer.state[p].items()
        }
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(8))
        twin.grad = p.grad.clone()
    optimizer.step()
    exact.step()
    for number, (p, twin) in enumerate(zip(params, twins, strict=True)):
        assert torch.equal(p, twin)
        for name, value in exact.state[twin].items():
            actual = optimizer.state[p][name]
            if isinstance(actual, qmaps.QuantizedTensor):
                place = list(Adafactor8bit.states).index(name)
                key = RoundingKey(tensor=number, state=place, step=int(optimizer.state[p]["step"]))
                assert torch.equal(actual.packed, actual.quantizer.quantize(value, key=key).packed)
            else:
                assert torch.equal(actual, value)


def test_second_moments_of_many_magnitudes_survive() -> None:
    """A linear or block-wise map would round the small ones to zero; log2 keeps them."""
    p = nn.Parameter(torch.zeros(5120))
    optimizer = Adafactor8bit([p], relative_step=False, scale_parameter=False, lr=1.0)
    sizes = 10 ** -torch.arange(5120).remainder(13).float()
    for _ in range(20):
        p.grad = sizes.clone()
        optimizer.step()
    v = optimizer.state[p]["variance"].dequantize()
    error = (v.double() / sizes.double().square()).log2().abs()
    assert float(error.max()) < 0.33  # a step of the code: 80 octaves / 254
    p.grad = torch.zeros(5120)
    optimizer.step()
    assert bool(p.isfinite().all())


def test_exact_zeros_stay() -> None:
    p = nn.Parameter(torch.zeros(5120))
    optimizer = Adafactor8bit([p], eps=(0.0, 1e-3))
    p.grad = torch.zeros(5120)
    p.grad[::2] = 1.0
    optimizer.step()
    v = optimizer.state[p]["variance"].dequantize()
    assert torch.equal(v, p.grad)
    assert bool((p[1::2] == 0).all())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 0}, "block_size=0 must be at least 1"),
        ({"block_size": 64, "blocksize": 32},
         "block_size=64 and blocksize=32 are the same option; set only one of them"),
        ({"state_quantizers": "8bit"},
         "state_quantizers='8bit' does not fit an optimizer of fixed width; use "
         "qmaps.optim.Adafactor"),
        ({"beta2_decay": 1}, "beta2_decay=1 must be at most 0"),
    ],
)  # fmt: skip
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        Adafactor8bit([torch.zeros(1)], **options)
    assert str(caught.value) == message
