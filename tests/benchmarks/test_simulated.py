"""Simulated gradients beside recorded ones: what is told of them is counted."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from benchmarks import simulated
from qmaps.analyze.recommend import verdict

pytestmark = pytest.mark.slow

ROWS = pd.read_csv(Path(__file__).parents[2] / "reports" / "simulated.csv")


def test_what_recommend_says_of_simulated_gradients_is_counted() -> None:
    assert set(ROWS["judge"]) == set(simulated.MODELS)
    assert len(simulated.MODELS) == verdict.REPLAYED
    assert simulated.agreement(ROWS) == verdict.FROM_RECORDED
    assert simulated.middle(ROWS) == pytest.approx(verdict.RATIOS, rel=0.01)
    assert verdict.experience("unproven", 0.001, "simulated") == (
        "of 84 pairs that simulated gradients of 9 small models call unproven, recorded ones call "
        "6 safe, 74 unproven, 4 caution"
    )
    assert verdict.magnitude(0.01, "mixed") == "0.01, with recorded gradients about 0.001 to 0.01"
    assert verdict.magnitude(0.0123, "recorded") == "0.012"


def test_dangerous_pairs_have_no_ratio() -> None:
    calm = {"zero_point_share": 0.0, "largest_update": 2.0}
    both = {**calm, **{f"{name}_simulated": value for name, value in calm.items()}}
    rows = pd.DataFrame(
        [
            {**both, "step_cost": 0.1, "step_cost_simulated": 0.2},
            {**both, "step_cost": 0.1, "step_cost_simulated": 0.2, "zero_point_share": 0.1},
            {**both, "step_cost": 0.1, "step_cost_simulated": 0.2, "largest_update_simulated": 1e5},
        ]
    )
    assert simulated.ratios(rows).to_dict() == {0: pytest.approx(2.0)}


def test_the_page_has_a_row_for_each_step_and_verdict() -> None:
    lines = simulated.page(ROWS, "command").splitlines()
    assert sum(line.startswith("| `") for line in lines) == 2 * verdict.REPLAYED
    assert "| unproven | 6 | 74 | 4 | 0 |" in lines
