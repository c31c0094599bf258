"""Parameters in bfloat16, rounded to the nearest or stochastically."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from qmaps.algebra.philox import RoundingKey
from qmaps.engines.bfloat16 import round_stochastically
from qmaps.optim import SGD, AdamW
from tests.optim.families import FAMILIES, Family, label, run

SHAPES = ((30, 10), (200,), ())
EVERY = pytest.mark.parametrize("family", FAMILIES, ids=label)


@pytest.mark.parametrize("rounding", [False, True])
@EVERY
def test_the_new_float32_value_is_rounded(family: Family, rounding: bool) -> None:
    options = {**family.options[-1], "lr": 0.01, "state_quantizers": "8bit", "seed": 9}
    options |= {"min_quantized_size": 100, "stochastic_rounding": rounding}
    params, optimizer, _ = run(family.full, options, 3, SHAPES, torch.bfloat16)
    # The same step on float32 parameters of the same values.
    twins = [nn.Parameter(p.detach().float()) for p in params]
    wide = family.full(twins, **options)
    wide.load_state_dict(optimizer.state_dict())
    generator = torch.Generator().manual_seed(1)
    for p, twin in zip(params, twins, strict=True):
        p.grad = torch.randn(p.shape, generator=generator).to(torch.bfloat16)
        twin.grad = p.grad.float()
    optimizer.step()
    wide.step()
    for number, (p, twin) in enumerate(zip(params, twins, strict=True)):
        number_of_step = int(optimizer.state[p]["step"])
        key = RoundingKey(seed=9, purpose=1, step=number_of_step, tensor=number)
        rounded = round_stochastically(twin.detach(), key)
        nearest = twin.detach().to(torch.bfloat16)
        assert torch.equal(p, rounded if rounding else nearest)
        if p.numel() > 1:
            assert not torch.equal(rounded, nearest)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@EVERY
def test_other_dtypes_ignore_the_option(family: Family, dtype: torch.dtype) -> None:
    results = []
    for rounding in (False, True):
        options = {**family.options[-1], "stochastic_rounding": rounding}
        params, _, _ = run(family.full, options, 4, SHAPES, dtype)
        results.append(params)
    for p, q in zip(*results, strict=True):
        assert torch.equal(p, q)


def test_small_updates_arrive_on_average() -> None:
    p, q = (nn.Parameter(torch.ones(10_000, dtype=torch.bfloat16)) for _ in range(2))
    optimizer = SGD([{"params": [p]}, {"params": [q], "stochastic_rounding": True}], lr=2.0**-13)
    for _ in range(64):
        p.grad, q.grad = torch.ones_like(p), torch.ones_like(q)
        optimizer.step()
    # Half a unit in the last place below 1 is 2**-9.
    assert bool((p == 1).all())
    # Below 1 a step is 2**-13 of a unit of 2**-8: variance of one at most 2**-21. Of seeds, 2e-9
    # lie beyond six standard deviations.
    mean = float(q.detach().double().mean())
    assert abs(mean - (1 - 64 * 2.0**-13)) < 6 * (64 * 2.0**-21 / 10_000) ** 0.5


def test_a_skipped_or_missing_gradient_moves_nothing() -> None:
    params = [nn.Parameter(torch.ones(50, dtype=torch.bfloat16)) for _ in range(2)]
    optimizer = AdamW(params, stochastic_rounding=True, nonfinite="skip")
    params[0].grad = torch.full((50,), float("nan"), dtype=torch.bfloat16)
    optimizer.step()
    assert optimizer.skipped_steps == 1
    assert all(bool((p == 1).all()) for p in params)
