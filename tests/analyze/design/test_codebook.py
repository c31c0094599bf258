"""Designed codebooks are optimal: against every codebook of a grid, and against theory."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest

from qmaps.analyze.design.codebook import (
    CELLS,
    GUARD,
    SQUARED,
    Loss,
    Samples,
    best,
    expected_loss,
    of_inverse_root,
    on_grid,
)


def draw(signed: bool, count: int = 40) -> Samples:
    random = np.random.default_rng(0)
    x = np.r_[random.uniform(-1, 1, count) ** 3, 1e-12]  # where the curvature is huge
    weights, pull = random.uniform(size=(2, count + 1))
    return Samples.of(x if signed else np.abs(x), weights, pull, signed=signed)


def slow(samples: Samples, codes: np.ndarray, loss: Loss, beta: float, stochastic: bool) -> float:
    """What a codebook costs, one gap and one sample at a time."""
    total = 0.0
    for x, w in zip(samples.x, samples.weights, strict=True):
        if x <= codes[0]:
            total += w * loss.of(x, codes[0])
    for a, b in pairwise(codes):
        once = pulled = 0.0
        for x, w, pull in zip(samples.x, samples.weights, samples.pull, strict=True):
            if not a < x <= b:
                continue
            if stochastic:
                share = (x - a) / (b - a)
                once += w * ((1 - share) * loss.of(x, a) + share * loss.of(x, b))
            else:
                once += w * loss.of(x, a if x <= (a + b) / 2 else b)
            pulled += w * pull * loss.curvature(np.array(x))
        if stochastic:
            once = min(once / (1 - beta**2), ((b - a) * pulled + 2 * once) / (1 + beta))
        total += once
    return float(total)


CASES = [
    (True, False, SQUARED, 0.9),
    (True, True, SQUARED, 0.9),
    (True, True, SQUARED, 0.3),
    (False, False, of_inverse_root(0.999), 0.999),
    (False, True, of_inverse_root(0.999), 0.999),
    (False, True, of_inverse_root(0.5), 0.5),
]


@pytest.mark.parametrize(("signed", "stochastic", "loss", "beta"), CASES)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_no_codebook_of_a_grid_is_better(
    signed: bool, stochastic: bool, loss: Loss, beta: float, size: int
) -> None:
    samples = draw(signed)
    points = np.linspace(-1, 1, 9) if signed else np.r_[np.geomspace(0.003, 0.9, 7), 0.96, 1]
    guarded = not signed and not stochastic and size > 2
    allowed = [
        np.array(codes)
        for codes in combinations(points, size)
        if codes[-1] == 1
        and (codes[0] == -1 if signed else True)
        and (codes[-2] >= GUARD if guarded else True)
    ]
    every = [slow(samples, codes, loss, beta, stochastic) for codes in allowed]
    found, cost = on_grid(
        samples, points, size, loss=loss, beta=beta, stochastic=stochastic, signed=signed
    )
    assert cost == pytest.approx(min(every))
    assert slow(samples, found, loss, beta, stochastic) == pytest.approx(min(every))


@pytest.mark.parametrize(("signed", "stochastic", "loss", "beta"), CASES)
def test_no_small_change_makes_it_better(
    signed: bool, stochastic: bool, loss: Loss, beta: float
) -> None:
    samples = draw(signed, 300)
    codes = best(samples, 8, loss=loss, beta=beta, stochastic=stochastic, signed=signed)
    assert len(codes) == 8
    assert (np.diff(codes) > 0).all()
    least = slow(samples, codes, loss, beta, stochastic)
    inner = range(1 if signed else 0, 6 if not signed and not stochastic else 7)
    for index in inner:
        for change in (0.97, 1.03):
            other = codes.copy()
            other[index] *= change
            assert slow(samples, np.sort(other), loss, beta, stochastic) > 0.998 * least


@pytest.mark.parametrize(("signed", "stochastic", "loss", "beta"), CASES)
@pytest.mark.parametrize("size", [4, 256])
def test_the_largest_magnitude_is_held_and_zero_only_if_signed(
    signed: bool, stochastic: bool, loss: Loss, beta: float, size: int
) -> None:
    codes = best(
        draw(signed, 3000), size, loss=loss, beta=beta, stochastic=stochastic, signed=signed
    )
    assert len(np.unique(codes.astype(np.float32))) == size
    assert codes[-1] == 1
    if signed:
        assert codes[0] == -1
    else:
        assert codes[0] > 0
        assert stochastic or codes[-2] >= GUARD


def test_zero_is_a_code_where_many_values_are_near_it() -> None:
    x = np.r_[np.zeros(50), np.linspace(-1, 1, 51)]
    codes = best(
        Samples.of(x, signed=True), 7, loss=SQUARED, beta=0.9, stochastic=True, signed=True
    )
    assert 0.0 in codes


def test_stochastic_rounding_of_an_average_wants_another_density_than_lloyd_max() -> None:
    # The left half is 16 times as dense as the right one.
    x = np.r_[np.linspace(-1, 0, 16_000, endpoint=False), np.linspace(0, 1, 1000)]
    pull = np.full_like(x, 0.5)
    codes = {
        stochastic: best(
            Samples.of(x, None, pull, signed=True),
            64,
            loss=SQUARED,
            beta=0.999,
            stochastic=stochastic,
            signed=True,
        )
        for stochastic in (False, True)
    }
    ratios = {kind: (each < 0).sum() / (each > 0).sum() for kind, each in codes.items()}
    assert ratios[False] == pytest.approx(16 ** (1 / 3), rel=0.1)
    assert ratios[True] == pytest.approx(16 ** (1 / 2), rel=0.1)


def test_each_codebook_is_the_better_one_for_its_rounding() -> None:
    x = np.random.default_rng(0).normal(size=(500, 32))
    x = (x / np.abs(x).max(1, keepdims=True)).ravel()
    weights = np.ones_like(x)
    codes = [
        best(Samples.of(x, signed=True), 8, loss=SQUARED, beta=0.9, stochastic=kind, signed=True)
        for kind in (False, True)
    ]
    for kind in (False, True):
        losses = [expected_loss(each, x, weights, loss=SQUARED, stochastic=kind) for each in codes]
        assert losses[kind] < losses[not kind]


def test_expected_loss_is_that_of_rounding() -> None:
    codes, x = np.array([-1.0, 0.2, 1.0]), np.array([-0.5, 0.6, 2.0])
    weights = np.array([1.0, 2.0, 1.0])
    nearest = expected_loss(codes, x, weights, loss=SQUARED, stochastic=False)
    assert nearest == pytest.approx((0.5**2 + 2 * 0.4**2 + 1) / 4)
    # (x - a)(b - x), and the clipped value as before.
    random = expected_loss(codes, x, weights, loss=SQUARED, stochastic=True)
    assert random == pytest.approx((0.5 * 0.7 + 2 * 0.4 * 0.4 + 1) / 4)


def test_loss_of_a_second_moment_is_that_of_the_update() -> None:
    x, c, beta = 0.3, 0.1, 0.9
    m, g = 0.02, np.sqrt(0.3)
    exact = m / np.sqrt(x)
    update = m / np.sqrt(beta * c + (1 - beta) * g * g)
    loss = of_inverse_root(beta)
    assert loss.of(np.array(x), np.array(c)) == pytest.approx((update / exact - 1) ** 2)
    near = loss.of(np.array(x), np.array(x + 1e-4)) / 1e-8
    assert loss.curvature(np.array(x)) == pytest.approx(near, rel=1e-2)


def test_samples_are_joined_with_their_weights() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=50_000).clip(-1, 1)
    weights, pull = random.uniform(size=(2, len(x)))
    found = Samples.of(x, weights, pull, signed=True)
    assert CELLS / 4 < len(found.x) <= 1.01 * CELLS
    assert (np.diff(found.x) >= 0).all()
    assert found.weights.sum() == pytest.approx(1)
    for own, given in ((found.x, x), (found.pull, pull)):
        assert np.average(own, weights=found.weights) == pytest.approx(
            np.average(given, weights=weights), rel=1e-6
        )


def test_samples_without_weight_or_value() -> None:
    assert Samples.of(np.array([0.5, 0.0]), np.zeros(2), signed=False).x.tolist() == [0.5]
    nothing = Samples.of(np.zeros(3), signed=False)
    assert (nothing.x.tolist(), nothing.weights.tolist()) == ([1.0], [1.0])
    codes = best(nothing, 4, loss=of_inverse_root(0.9), beta=0.9, stochastic=False, signed=False)
    assert codes[-1] == 1
