"""Verdicts follow their rules and name the measure behind them."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from qmaps.analyze.recommend.verdict import LEVELS, early, earned, level, verdict
from qmaps.analyze.replay import step_cost


def row(gain: float = 1.0, noise: float = 0.0, largest: float = 5.0, **columns: object) -> dict:
    measures = {"update_gain": gain, "update_noise": noise, "largest_update": largest}
    return {
        "parameter": "w",
        "cost": 1.0,
        "zero_point_share": 0.0,
        **measures,
        "step_cost": step_cost(*measures.values()),
        **columns,
    }


@pytest.mark.parametrize(
    ("measures", "expected", "reason"),
    [
        (row(0.9996), "clean", "updates keep 1.00 of their length"),
        (
            row(0.9996, fall_ratio_second=14.3),
            "unproven",
            "second moments end at 14 times the exact ones where gradients fall",
        ),
        (
            row(fall_ratio_second=0.4),
            "unproven",
            "second moments end at 0.4 times the exact ones where gradients fall",
        ),
        (row(0.9996, fall_ratio_second=1.9), "clean", "updates keep 1.00 of their length"),
        (row(0.9996, fall_ratio_second=math.nan), "clean", "updates keep 1.00 of their length"),
        (row(0.98, fall_ratio_second=14), "unproven", "updates keep 0.98 of their length"),
        (row(0.98), "unproven", "updates keep 0.98 of their length"),
        (row(1.2, 0.15), "clean", "noise 0.15 times the update"),
        (row(1.2, 0.5), "unproven", "noise 0.5 times the update"),
        (row(0.96), "caution", "updates keep 0.96 of their length"),
        (row(0.78, 1), "unsafe", "updates keep 0.78 of their length"),
        (row(0.95, 2.9), "unsafe", "noise 2.9 times the update"),
        (row(0.999, 0, 900), "caution", "updates of up to 900 learning rates"),
        (row(1.0, 0, 9990), "caution", "updates of up to 1e4 learning rates"),
        (row(2.0, 0, 3.1e5), "unsafe", "updates of up to 3e5 learning rates (most in w)"),
        (row(2.0, 0, math.inf), "unsafe", "updates of up to inf learning rates (most in w)"),
        (row(math.nan), "unsafe", "updates are not finite"),
        (row(math.nan, cost=0.0), "clean", "there are no updates"),
        (
            row(zero_point_share=0.01, cost=0.0),
            "unsafe",
            "second moments become 0 under first moments that do not (0.01 of the elements, most "
            "in w)",
        ),
    ],
)
def test_the_level_and_its_reason(measures: dict, expected: str, reason: str) -> None:
    assert verdict(measures, pd.DataFrame([measures])) == (expected, reason)
    assert level(measures) == expected


def test_a_parameter_that_is_unsafe_by_itself() -> None:
    parts = [row(cost=97.0), row(0.5, parameter="a"), row(0.4, parameter="b")]
    heavy = pd.DataFrame(parts)
    assert verdict(row(0.99), heavy) == (
        "caution",
        "b and 1 more are unsafe: updates keep 0.40 of their length",
    )
    assert (
        verdict(row(0.99), heavy.iloc[:2]).reason
        == "a is unsafe: updates keep 0.50 of their length"
    )
    light = heavy.assign(cost=[199.0, 0.9, 0.9])
    named = "b and 1 more are unsafe: updates keep 0.40 of their length"
    assert verdict(row(0.99), light) == (
        "unproven",
        f"updates keep 0.99 of their length; {named}",
    )
    assert verdict(row(0.96), light) == ("caution", f"updates keep 0.96 of their length; {named}")
    assert verdict(row(0.5), heavy).level == "unsafe"


@pytest.mark.parametrize(
    ("step", "beta2", "is_early"), [(99, 0.999, True), (101, 0.999, False), (2, 0.9, False)]
)
def test_early(step: int, beta2: float, is_early: bool) -> None:
    assert early(step, beta2) is is_early


def test_only_measured_pairs_are_safe() -> None:
    assert [earned(level, proven=True) for level in LEVELS] == list(LEVELS)
    assert [earned(level, proven=False) for level in LEVELS] == ["unproven", *LEVELS[1:]]
