"""Each formula of the theory against a simulation."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

import qmaps
from benchmarks import rounding_theory as theory
from qmaps.algebra.philox import RoundingKey
from qmaps.analyze.replay.recursion import Recursion

pytestmark = pytest.mark.slow

Round = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def nearest(y: np.ndarray, _: np.random.Generator) -> np.ndarray:
    return np.rint(y)


def stochastic(y: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return np.floor(y + random.random(y.shape))


def average(
    rounded: Round, beta: float, noise: float, steps: int, count: int, start: float | None = None
) -> tuple[np.ndarray, np.ndarray, float]:
    """States and exact averages at the end, and the mean square error over the second half.

    Targets are anywhere between two codes. States begin at the nearest code, or at `start`.
    """
    random = np.random.default_rng(0)
    target = random.random(count)
    x = target.copy() if start is None else np.full(count, start)
    q = np.rint(x)
    total = 0.0
    for step in range(steps):
        z = target + noise * random.normal(size=count)
        q = rounded(q + (1 - beta) * (z - q), random)
        x = x + (1 - beta) * (z - x)
        if 2 * step >= steps:
            total += float(((q - x) ** 2).mean())
    return q, x, total / math.ceil(steps / 2)


@pytest.mark.parametrize("beta", [0.5, 0.9, 0.99])
def test_nearest_stalls_at_this_distance(beta: float) -> None:
    random = np.random.default_rng(1)
    targets = 2000 + 300 * random.random(500)
    q = np.zeros(500)
    for _ in range(5000):
        q = np.rint(q + (1 - beta) * (targets - q))
    distance = targets - q
    radius = theory.stall_radius(beta)
    assert distance.max() <= radius + 1e-9
    assert distance.min() > radius - 1
    assert distance.max() > radius - 0.1


@pytest.mark.parametrize("jitter", [0.03, 0.1, 0.2, 0.3, 0.5, 1.0])
def test_one_rounding_of_a_noisy_move(jitter: float) -> None:
    w = jitter * np.random.default_rng(2).normal(size=2_000_000)
    r = np.rint(w) - w
    assert theory.nearest_variance(jitter) == pytest.approx((r**2).mean(), rel=0.01)
    f = w - np.floor(w)
    assert theory.stochastic_variance(jitter) == pytest.approx((f * (1 - f)).mean(), rel=0.01)
    # The slope of E[Q(w)] in the mean of w, by Stein's lemma too.
    shift = 0.02
    slope = (np.rint(w + shift).mean() - np.rint(w - shift).mean()) / (2 * shift)
    assert theory.kept_movement(jitter) == pytest.approx(slope, abs=0.02)
    assert theory.kept_movement(jitter) == pytest.approx(
        (w * np.rint(w)).mean() / jitter**2, abs=0.01
    )


@pytest.mark.parametrize("jitter", [0.15, 0.25, 0.35, 0.6])
@pytest.mark.parametrize("beta", [0.9, 0.99])
def test_the_effective_beta_of_a_replay(beta: float, jitter: float) -> None:
    q = qmaps.quantizer("tensor/linear@10s")
    gap = 2 / 1023
    count = 40_000
    generator = torch.Generator().manual_seed(3)
    start = torch.full((count,), gap / 2)
    start[0] = 1  # holds the scale
    recursion = Recursion(start, [q], beta, RoundingKey())
    resisted = pulled = 0.0
    for step in range(1, 41):
        z = gap / 2 + jitter / (1 - beta) * gap * torch.randn(count, generator=generator)
        z[0] = 1
        recursion.advance(z, step, check=False)
        pull, rounding = recursion.before[1] - z, recursion.after[1] - recursion.before[1]
        resisted += float((rounding * pull).sum())
        pulled += float(pull.square().sum())
    # The least-squares fit of the decay of q(t) = b q(t - 1) + (1 - b) z(t).
    movement = (1 - beta * (1 + resisted / pulled)) / (1 - beta)
    # The state varies as well, at most as the exact average does.
    largest_jitter = jitter * math.sqrt(2 / (1 + beta))
    assert (
        theory.kept_movement(jitter) - 0.02 < movement < theory.kept_movement(largest_jitter) + 0.02
    )


@pytest.mark.parametrize("beta", [0.9, 0.99])
@pytest.mark.parametrize("noise", [0.0, 0.3, 3.0, 100.0])
def test_stochastic_rounding_in_the_long_run(beta: float, noise: float) -> None:
    steps = round(40 / (1 - beta))
    q, x, error = average(stochastic, beta, noise, steps, 200_000 // steps * 20)
    assert error == pytest.approx(theory.stochastic_error(beta, noise), rel=0.1)
    assert abs(float((q - x).mean())) < 5 * math.sqrt(error / len(q))  # without bias
    assert error <= 1.02 * theory.amplification(beta) / 6


@pytest.mark.parametrize("beta", [0.9, 0.99])
def test_independent_errors_accumulate(beta: float) -> None:
    random = np.random.default_rng(4)
    error = np.zeros(100_000)
    for steps in range(1, 61):
        error = beta * error + random.normal(size=len(error))
        if steps in (1, 10, 60):
            assert theory.amplification(beta, steps) == pytest.approx((error**2).mean(), rel=0.03)


def test_stochastic_rounding_has_the_least_variance_without_bias() -> None:
    """Among all distributions on the codes with the right mean, for a fraction f."""
    from scipy.optimize import linprog

    codes = np.arange(-3, 5)
    for f in (0.1, 0.37, 0.5, 0.9):
        best = linprog((codes - f) ** 2, A_eq=[np.ones(8), codes], b_eq=[1, f], bounds=(0, 1))
        assert best.fun == pytest.approx(f * (1 - f))


@pytest.mark.parametrize("beta", [0.9, 0.99])
@pytest.mark.parametrize(
    ("jitter", "better"),
    [(0.03, stochastic), (0.1, stochastic), (0.3, nearest), (0.6, nearest), (1.0, nearest)],
)
def test_the_better_rounding_depends_on_the_noise(
    beta: float, jitter: float, better: Round
) -> None:
    """Stochastic for noise of a tenth of a gap per step, nearest from 0.3 on."""
    noise, steps = jitter / (1 - beta), round(40 / (1 - beta))
    start = 4 * theory.stall_radius(beta)  # so that a state that stalls has an error
    errors = {
        rounded: average(rounded, beta, noise, steps, 2000, start)[2]
        for rounded in (nearest, stochastic)
    }
    assert min(errors, key=errors.__getitem__) is better, errors
