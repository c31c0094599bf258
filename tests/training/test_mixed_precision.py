"""Autocast, scaled losses, and parameters of 16 bits."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from qmaps.algebra.philox import RoundingKey
from qmaps.engines.bfloat16 import round_stochastically
from tests.training.runs import EVERY, assert_same, every_with, gradients, loss_of, make, net

pytestmark = pytest.mark.slow


@every_with("dtype", [torch.bfloat16, torch.float16], ["AdamW8bit"])  # gradients are float32
def test_autocast_keeps_parameters_and_steps_in_float32(
    kind: str, dtype: torch.dtype, engine: str
) -> None:
    model = net()
    optimizer = make(kind, model.parameters())
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            loss = loss_of(model, 0)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert losses[-1] < losses[0]


@every_with("clipped", [True, False])
def test_a_scaler_of_gradients(kind: str, clipped: bool, engine: str) -> None:
    model, plain = net(), net()
    optimizer, unscaled = make(kind, model.parameters()), make(kind, plain.parameters())
    # Powers of two scale without rounding.
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=3)
    scales = []
    for number in range(6):
        overflow = number == 2
        optimizer.zero_grad()
        scaler.scale(loss_of(model, number)).backward()
        if overflow:
            model[0].weight.grad[1, 2] = float("inf")
        if clipped:
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 0.01)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        if not overflow:
            unscaled.zero_grad()
            loss_of(plain, number).backward()
            if clipped:
                clip_grad_norm_(plain.parameters(), 0.01)
            unscaled.step()
    assert scales == [2.0**12, 2.0**12, 2.0**11, 2.0**11, 2.0**11, 2.0**12]
    assert optimizer.skipped_steps == 0  # the scaler left it out, the optimizer was not asked
    assert_same(optimizer, unscaled)


@EVERY
def test_a_scaler_works_with_an_optimizer_that_skips_steps(kind: str, engine: str) -> None:
    model = net()
    optimizer = make(kind, model.parameters(), nonfinite="skip")
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=False)
    before = [p.detach().clone() for p in model.parameters()]
    scaler.scale(loss_of(model, 0)).backward()
    model[2].bias.grad[0] = float("nan")
    scaler.step(optimizer)
    assert optimizer.skipped_steps == 1
    for p, value in zip(model.parameters(), before, strict=True):
        assert torch.equal(p, value)


@pytest.mark.parametrize("rounding", [False, True])
@EVERY
def test_bfloat16_parameters_are_the_rounded_step(kind: str, rounding: bool, engine: str) -> None:
    model = net(torch.bfloat16)
    wide = net(torch.bfloat16).float()
    optimizer = make(kind, model.parameters(), stochastic_rounding=rounding, seed=6)
    exact = make(kind, wide.parameters(), seed=6)
    for step in range(1, 4):
        gradients(model.parameters(), step)
        for p, q in zip(model.parameters(), wide.parameters(), strict=True):
            q.grad = p.grad.float()
        optimizer.step()
        exact.step()
        for number, (p, q) in enumerate(zip(model.parameters(), wide.parameters(), strict=True)):
            key = RoundingKey(seed=6, purpose=1, step=step, tensor=number)
            rounded = round_stochastically(q.detach(), key)
            expected = rounded if rounding else q.detach().to(torch.bfloat16)
            assert torch.equal(p, expected)
            # The next step begins at the rounded value.
            q.data = expected.float()
