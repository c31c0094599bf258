"""Counts of `qmaps.recommend`'s verdicts match the rows of reports."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from benchmarks import long_prediction, verdict_counts
from benchmarks.blind.models import MODELS, SEEN
from qmaps.analyze.recommend import verdict

pytestmark = pytest.mark.slow

PAIRS = verdict_counts.committed()


def test_counts_of_trained_pairs() -> None:
    assert verdict_counts.ended(PAIRS) == verdict.ENDED
    assert PAIRS["judge"].nunique() == verdict.MODELS
    left_out = verdict_counts.bounds(PAIRS)
    assert (left_out["kept_up"].sum(), left_out["pairs"].sum()) == verdict.LEFT_OUT
    safe = verdict.experience("clean", 0.0001)
    assert safe.startswith("of 27 pairs that replays of whole runs of 6")
    assert f"over {verdict.STEPS}; with each model left out" in safe
    assert "of the choice of the bound, 35 of 44; over 8,000 steps on" in safe


def test_the_lengths_of_the_trainings_that_recommend_names() -> None:
    trials = pd.read_csv(verdict_counts.REPORTS / "prediction" / "trials.csv")
    steps = {*trials[trials["part"].isin(verdict_counts.PARTS)]["steps"]}
    steps |= {model.steps for name, model in MODELS.items() if name not in SEEN}
    assert f"{min(steps)} to {max(steps)} steps" == verdict.STEPS


def test_what_recommend_says_of_long_trainings() -> None:
    pairs = long_prediction.points(*long_prediction.committed())
    assert long_prediction.ends(pairs) == verdict.LONG_ENDED
    assert pairs["task"].nunique() == verdict.LONG_TASKS
    assert {
        study.steps for study in long_prediction.studies() if study.task in {*pairs["task"]}
    } == {8000}
    kept_up, counted = verdict.LONG_ENDED["unproven"]
    assert f"{kept_up} of {counted} at most 5 % slower" in verdict.experience("unproven", 0.01)


def test_counts_of_simulated_gradients() -> None:
    counts, ratios = verdict_counts.simulated()
    assert counts == verdict.FROM_RECORDED
    assert ratios == pytest.approx(verdict.RATIOS, rel=0.01)
    assert verdict.experience("unproven", 0.001, "simulated") == (
        "of 84 pairs that simulated gradients of 9 small models call unproven, recorded ones call "
        "6 clean, 74 unproven, 4 caution"
    )
    assert verdict.magnitude(0.01, "mixed") == "0.01, with recorded gradients about 0.001 to 0.01"
    assert verdict.magnitude(0.0123, "recorded") == "0.012"


def test_the_bound_of_clean() -> None:
    up_to = PAIRS[PAIRS["verdict"].isin(verdict.HARMLESS) & (PAIRS["cost"] <= verdict.CLEAN)]
    assert (up_to["slower"] <= np.log(1.02)).mean() >= 0.95
    harmless = PAIRS[PAIRS["verdict"].isin(verdict.HARMLESS)]
    failed = harmless[harmless["slower"] > np.log1p(verdict_counts.MARGIN)]["cost"].min()
    assert verdict.CLEAN < failed < 1.02 * verdict.CLEAN
