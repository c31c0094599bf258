"""Scalars of each step, and their functions."""

from __future__ import annotations

import math

import pytest

from qmaps.engines.step_scalars import (
    Lengthened,
    LengthenedRest,
    Power,
    PowerRest,
    Warmed,
    exp,
    log,
)


def test_logarithms_are_those_of_the_library() -> None:
    near_1 = [1 - 10.0**-k for k in range(1, 16)]
    for x in [*near_1, *(k / 1000 for k in range(1, 1000)), 0.5, 1e-30, 1e-300, 5e-324]:
        assert log(x) == pytest.approx(math.log(x), rel=1e-15), x


def test_exponentials_are_those_of_the_library() -> None:
    near_0 = [-(10.0**-k) for k in range(1, 20)]
    for y in [0.0, *near_0, *(-k / 100 for k in range(70_000)), -math.log(2), -math.log(2) / 2]:
        assert exp(y) == pytest.approx(math.exp(y), rel=1e-15), y
    # Halving rounds subnormal numbers more than once.
    assert exp(-744.0) == pytest.approx(math.exp(-744), abs=1e-323)
    assert (exp(-746.0), exp(-1e300)) == (0.0, 0.0)


@pytest.mark.parametrize("a", [0.0, -0.5, -0.8, -1.0, -3.0])
def test_powers_of_the_step(a: float) -> None:
    for step in (*range(1, 200), 10**4, 2**24):
        assert Power(a).at(step) == pytest.approx(math.pow(step, a), rel=1e-13), step
        assert PowerRest(a).at(step) == 1 - Power(a).at(step)
    assert (Power(a).at(1), PowerRest(a).at(1)) == (1.0, 0.0)


def test_a_share_warms_up_linearly() -> None:
    share = Warmed(8.0, 4)
    assert [share.at(step) for step in (1, 2, 3, 4, 5, 1000)] == [2.0, 4.0, 6.0, 8.0, 8.0, 8.0]


@pytest.mark.parametrize("first", [0.0, 0.5, 0.9])
def test_half_lives_grow_linearly(first: float) -> None:
    last, steps = 0.9999, 1000

    def half_life(decay: float) -> float:
        return math.log(0.5) / math.log(decay)

    start = half_life(first) if first else 0.0
    decay, complement = Lengthened(last, first, steps), LengthenedRest(last, first, steps)
    for step in (1, 10, 500, 999):
        share = step / steps
        expected = (1 - share) * start + share * half_life(last)
        assert half_life(decay.at(step)) == pytest.approx(expected, rel=1e-11)
        assert complement.at(step) == 1 - decay.at(step)
    assert {decay.at(step) for step in (steps, steps + 1, 10**7)} == {last}
