"""Of equally good pairs the simplest is taken."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from qmaps.algebra.pair import Pair
from qmaps.analyze.recommend.picks import best_of
from qmaps.maps import Codebook

MINE = Codebook([-1.0, -0.5, 0.0, 0.5], label="mine")


def pair(size: int, custom_map: bool, stochastic: bool) -> Pair:
    map_ = "mine@2s" if custom_map else "linear@2s"
    return Pair.parse(f"B{size}/{map_}{'+sr' * stochastic} + 32-bit", [MINE])


def row(cost: float, bits: float = 4.25, custom_map: bool = True, stochastic: bool = True) -> tuple:
    return cost, bits, custom_map, stochastic


@pytest.mark.parametrize(
    ("preferred", "other"),
    [
        (row(0.010), row(0.011, bits=4.0)),  # 10 % is no tie
        (row(0.0104, bits=4.24), row(0.010)),
        (row(0.010), row(0.0104, bits=4.252, custom_map=True)),
        (row(0.0104, custom_map=False), row(0.010)),
        (row(0.0104, stochastic=False), row(0.010)),
        (row(0.0104, custom_map=False), row(0.010, stochastic=False)),
        (row(9e-5, bits=4.1), row(1e-6)),  # both are as good as exact
        (row(1e-6), row(9e-5)),
        (row(0.01), row(2.0, bits=4.0)),
    ],
)
def test_the_order_of_preference(preferred: tuple, other: tuple) -> None:
    pairs = [pair(size, *options[2:]) for size, options in ((64, preferred), (128, other))]
    table = pd.DataFrame(
        {
            "quantizer": candidate.spec,
            "bits_per_element": bits,
            "update_gain": math.exp(-cost),  # the cost of a lost length alone
            "update_noise": 0.0,
            "largest_update": 1.0,
            "zero_point_share": 0.0,
        }
        for candidate, (cost, bits, *_) in zip(pairs, (preferred, other), strict=True)
    )
    assert best_of(table, pairs, math.inf) == pairs[0]
    assert best_of(table[::-1], pairs[::-1], math.inf) == pairs[0]
    assert best_of(table, pairs, 3.0) is None
