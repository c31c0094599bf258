"""Simulated gradients have the moments' mean and variance, and are labelled."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Tensor

import qmaps
from qmaps.analyze.replay.source import mean_and_variance, simulated

BETAS = (0.9, 0.999)
PAIR = "B128/DE@4s + B128/DE@4u"


def moments(steps: int, signal: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Means and deviations of gradients, and Adam's moments after these steps."""
    generator = torch.Generator().manual_seed(0)
    mean = signal * torch.randn(20_000, generator=generator, dtype=torch.float64)
    deviation = torch.rand(20_000, generator=generator, dtype=torch.float64) + 0.5
    m, v = torch.zeros_like(mean), torch.zeros_like(mean)
    for _ in range(steps):
        g = mean + deviation * torch.randn(20_000, generator=generator, dtype=torch.float64)
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
    return mean, deviation, m, v


@pytest.mark.parametrize("steps", [3, 40, 400])
@pytest.mark.parametrize("signal", [0.0, 0.1, 1.0])
def test_signal_and_noise_are_separated(steps: int, signal: float) -> None:
    mean, deviation, m, v = moments(steps, signal)
    actual, variance = mean_and_variance(m, v, BETAS, steps)
    assert actual.square().mean() == pytest.approx(float(mean.square().mean()), rel=0.1, abs=0.03)
    total = mean.square() + deviation.square()
    assert (actual.square() + variance).mean() == pytest.approx(float(total.mean()), rel=0.1)
    assert variance.mean() == pytest.approx(float(deviation.square().mean()), rel=0.1)


def test_draws_have_the_mean_and_variance() -> None:
    *_, m, v = moments(200, 0.7)
    m, v = m[:200].float(), v[:200].float()
    draws = torch.stack(list(simulated(m, v, BETAS, 200, 4000, (1, 2)))).double()
    mean, variance = mean_and_variance(m, v, BETAS, 200)
    deviation = variance.sqrt()
    # Each mean of 4000 draws is within five standard errors.
    assert ((draws.mean(0) - mean).abs() <= 5 * deviation / math.sqrt(4000) + 1e-6).all()
    torch.testing.assert_close(draws.var(0), variance, rtol=0.15, atol=1e-9)
    assert abs(float((draws[1:] * draws[:-1]).mean() - mean.square().mean())) < 0.01


def test_seeds_name_the_draws() -> None:
    m, v = torch.zeros(50), torch.ones(50)

    def drawn(*seed: int) -> Tensor:
        return torch.stack(list(simulated(m, v, BETAS, 9, 3, (seed[0], seed[1]))))

    assert torch.equal(drawn(1, 2), drawn(1, 2))
    assert not torch.equal(drawn(1, 2), drawn(1, 3))
    assert not torch.equal(drawn(1, 2), drawn(2, 2))


@pytest.mark.parametrize("steps", [1, 2, 1000])
def test_moments_without_noise_or_without_anything(steps: int) -> None:
    zeros = torch.zeros(5)
    mean, variance = mean_and_variance(zeros, zeros, BETAS, steps)
    assert torch.equal(mean, zeros.double())
    assert torch.equal(variance, zeros.double())
    constant = torch.tensor([1.0, -2.0], dtype=torch.float64)
    m, v = constant * (1 - 0.9**steps), constant.square() * (1 - 0.999**steps)
    mean, variance = mean_and_variance(m, v, BETAS, steps)
    torch.testing.assert_close(mean, constant)
    assert variance.max() < 1e-9


def test_a_replayed_checkpoint_is_labelled_as_simulated(tmp_path: Path) -> None:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.zeros(100, 64))
    optimizer = torch.optim.AdamW([weight])
    for _ in range(50):
        weight.grad = 1 + torch.randn_like(weight)
        optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    frame = qmaps.replay.run(tmp_path / "optimizer.pt", [PAIR], steps=20)
    assert frame[["step", "steps", "gradients"]].iloc[0].tolist() == [50, 20, "simulated"]
    assert frame["descent"].item() > 0
    pd.testing.assert_frame_equal(
        frame, qmaps.replay.run(tmp_path / "optimizer.pt", [PAIR], steps=20)
    )
    assert qmaps.replay.run(tmp_path / "optimizer.pt", [PAIR])["steps"].item() == 100
    # The real gradients have a mean of 1, and so does the update; so do the simulated ones.
    per_element = frame["descent"].item() / (19 * 6400)
    assert per_element == pytest.approx(1 / math.sqrt(2), abs=0.15)
    tensors = {"w": {name: optimizer.state[weight][name] for name in ("exp_avg", "exp_avg_sq")}}
    unknown = qmaps.replay.run(tensors, [PAIR], steps=20)  # of unknown age
    assert unknown["gradients"].item() == "simulated"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_default_dtype_changes_nothing(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    m = torch.randn(65, 64, generator=generator)
    states = {"weight": {"exp_avg": m, "exp_avg_sq": m.square() + 0.1}}

    def results() -> tuple[qmaps.Codebook, Tensor, pd.DataFrame]:
        fitted = qmaps.quantizer("B64/lloyd@3s").fit(m).map.codebook()
        return qmaps.Codebook([-1, -0.3, 0, 0.3, 1]), fitted, qmaps.replay.run(states, [PAIR])

    codebook, fitted, frame = results()
    torch.set_default_dtype(dtype)
    try:
        same, refitted, replayed = results()
    finally:
        torch.set_default_dtype(torch.float32)
    assert same == codebook
    assert torch.equal(refitted, fitted)
    pd.testing.assert_frame_equal(replayed, frame)
