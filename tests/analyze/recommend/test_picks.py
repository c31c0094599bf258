"""Of equally good pairs the simplest is taken."""

from __future__ import annotations

import pytest

from qmaps.algebra.pair import Pair
from qmaps.analyze.recommend.picks import preferred

PAIRS = [Pair.parse(f"B{size}/DE@4s + 32-bit") for size in (64, 128)]


def row(error: float, bits: float = 4.25, custom_map: bool = True, stochastic: bool = True) -> dict:
    return {
        "selection_error": error,
        "bits_per_element": bits,
        "custom_map": custom_map,
        "stochastic": stochastic,
    }


@pytest.mark.parametrize(
    ("taken", "other"),
    [
        (row(0.010), row(0.011, bits=4.0)),  # 10 % is no tie
        (row(0.0104, bits=4.24), row(0.010)),
        (row(0.010), row(0.0104, bits=4.252, custom_map=True)),
        (row(0.0104, custom_map=False), row(0.010)),
        (row(0.0104, stochastic=False), row(0.010)),
        (row(0.0104, custom_map=False), row(0.010, stochastic=False)),
        (row(9e-5, bits=4.1), row(1e-6)),  # both are as good as exact
        (row(1e-6), row(9e-5)),
        (row(0.01), row(float("inf"), bits=4.0)),
    ],
)
def test_the_order_of_preference(taken: dict, other: dict) -> None:
    one, two = PAIRS
    assert preferred({one: taken, two: other}) == one
    assert preferred({two: other, one: taken}) == one
