"""Counts of `qmaps.recommend`'s verdicts match the rows of reports."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import verdict_counts
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
    assert safe.endswith("of the choice of the bound, 35 of 44")


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
