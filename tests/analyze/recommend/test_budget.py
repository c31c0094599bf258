"""Picks under a budget equal those of an exhaustive search."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from qmaps.analyze.recommend.picks import Option, choose
from qmaps.errors import BadValueError


def drawn(seed: int) -> list[list[Option]]:
    random.seed(seed)
    return [
        [Option(8 * bits, 2.0 ** -bits * random.uniform(0.2, 5)) for bits in range(1, 5)]
        for _ in range(4)
    ]  # fmt: skip


def total(tensors: list[list[Option]], picks: list[int]) -> Option:
    picked = [options[pick] for options, pick in zip(tensors, picks, strict=True)]
    return Option(sum(o.nbytes for o in picked), sum(o.error for o in picked))


@pytest.mark.parametrize("seed", range(5))
def test_choices_are_optimal_for_the_bytes_they_take(seed: int) -> None:
    tensors = drawn(seed)
    every = [total(tensors, list(p)) for p in itertools.product(range(4), repeat=4)]
    largest = math.inf
    for budget in range(32, 130, 8):
        actual = total(tensors, choose(tensors, budget))
        best = min(o.error for o in every if o.nbytes <= budget)
        assert actual.nbytes <= budget
        assert best <= actual.error <= largest
        largest = actual.error  # more bytes, less error
    # With a multiplier: its picks are found with their bytes as the budget.
    for price in (0.001, 0.01, 0.02, 0.05):
        costs = [[o.error + price * o.nbytes for o in options] for options in tensors]
        picks = [row.index(min(row)) for row in costs]
        wanted = total(tensors, picks)
        actual = total(tensors, choose(tensors, wanted.nbytes))
        assert actual.error == pytest.approx(wanted.error)
        assert wanted.error == pytest.approx(
            min(o.error for o in every if o.nbytes <= wanted.nbytes)
        )


def test_options_that_are_no_use_are_left_out() -> None:
    options = [Option(4, 0.5), Option(2, 1.0), Option(3, math.nan), Option(3, 0.99), Option(5, 0.6),
               Option(1, math.inf), Option(9, 0.0)]  # fmt: skip
    assert [choose([options], budget) for budget in (2, 4, 9)] == [[1], [0], [6]]
    with pytest.raises(BadValueError) as caught:
        choose([options, options], 3)
    assert str(caught.value) == "no choice takes 3 bytes or less; the smallest takes 4"
