"""Samples are the normalized moments, weighted by what an error of theirs costs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from qmaps.analyze.design import samples
from qmaps.analyze.replay.source import RECORDED, Source
from qmaps.normalize.block import BlockWise
from qmaps.normalize.rank1 import Rank1

BETAS, EPS, TAKEN = (0.8, 0.95), 1e-3, 7


def given(steps: int = 4) -> tuple[Source, list[Tensor]]:
    torch.manual_seed(0)
    m, v = torch.randn(6, 64), torch.rand(6, 64)
    gradients = [torch.randn(6, 64) for _ in range(steps)]
    source = Source("a", 0, (6, 64), m, v, BETAS, EPS, TAKEN, RECORDED, steps,
                    lambda: iter(gradients))  # fmt: skip
    return source, gradients


def update(m: Tensor, v: Tensor, step: int) -> Tensor:
    root = (v / (1 - BETAS[1] ** step)).sqrt() + EPS
    return m / (1 - BETAS[0] ** step) / root


def test_looks_see_the_exact_moments() -> None:
    source, gradients = given()
    found = samples.looks([source])
    assert len(found) == 4
    m, v = source.m, source.v
    for look, gradient in zip(found, gradients, strict=True):
        m = 0.8 * m + 0.2 * gradient
        v = 0.95 * v + 0.05 * gradient**2
        torch.testing.assert_close(look.moments, (m, v))
        assert sorted(look.chosen.tolist()) == list(range(6 * 64))
    assert len(samples.looks([given(9)[0]])) == 4


@pytest.mark.parametrize("normalizer", [BlockWise(32), Rank1()])
def test_weights_are_the_cost_of_an_error(normalizer: BlockWise | Rank1) -> None:
    look = samples.looks([given()[0]])[0]
    (m, v), step = (each.double() for each in look.moments), TAKEN + 1
    curvature = (v / (1 - BETAS[1] ** step)).sqrt() + EPS
    exact = update(m, v, step)
    order = look.chosen
    x, weights, _ = look.normalized(0, normalizer)
    scale = (m.reshape(-1)[order] / x).nan_to_num()
    # A small error of the normalized value, and what it does to the update.
    wrong = m.reshape(-1).clone()
    wrong[order] += 1e-3 * scale
    cost = (update(wrong.view_as(m), v, step) - exact).square() * curvature
    torch.testing.assert_close(weights * 1e-6, cost.reshape(-1)[order], rtol=1e-4, atol=1e-12)
    _, weights, _ = look.normalized(1, normalizer)
    cost = (exact * 1.01 - exact).square() * curvature
    torch.testing.assert_close(weights * 1e-4, cost.reshape(-1)[order], rtol=1e-4, atol=1e-12)


def test_pull_is_the_distance_to_what_is_averaged() -> None:
    source, gradients = given()
    look = samples.looks([source])[0]
    m, v = look.moments
    order = look.chosen
    x, _, pull = look.normalized(0, BlockWise(64))
    scale = m.reshape(6, 64).abs().amax(1).repeat_interleave(64)[order]
    wanted = ((gradients[0] - m).abs().reshape(-1)[order] / scale).double()
    torch.testing.assert_close(pull, wanted, rtol=1e-5, atol=1e-7)
    x, _, pull = look.normalized(1, BlockWise(64))
    assert (pull <= 2 * x * (1 + 1e-6)).all()
    below = (v - gradients[0] ** 2).clamp(min=0).reshape(-1)[order]
    assert ((pull > 0) == (below > 0)).all()


def test_parameters_share_the_number_of_elements() -> None:
    source, _ = given()
    found = samples.looks([source, source], most=400)
    assert sum(len(look.chosen) for look in found) == 400
    drawn = samples.samples(found, 1, BlockWise(64))
    assert len(drawn.x) == 400
    assert drawn.weights.sum() == pytest.approx(1)
    assert 0 < drawn.x[0] < drawn.x[-1] <= 1


def test_zeros_weigh_nothing() -> None:
    source, _ = given()
    zero = Source("a", 0, (6, 64), source.m * 0, source.v * 0, BETAS, 0.0, TAKEN, RECORDED, 4,
                  lambda: iter([torch.zeros(6, 64)] * 4))  # fmt: skip
    for moment in (0, 1):
        found = samples.samples(samples.looks([zero]), moment, BlockWise(64))
        assert np.isfinite([found.x, found.weights, found.pull]).all()
