"""The blind test's unit and its tests of equivalence."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from benchmarks.blind import equivalence
from benchmarks.trials import FULL

pytestmark = pytest.mark.slow


def runs(difference: float, spread: float = 1e-4, slope: float = 0.1) -> pd.DataFrame:
    """Runs of 32 bits and of one pair on a loss of -slope log(steps), three lengths and 4 seeds."""
    noise = np.random.default_rng(0)
    rows = []
    for seed in range(4):
        for length in (0.7, 1.0, 1.4):
            loss = seed - slope * np.log(length)
            rows.append((FULL, seed, length, loss))
            if length == 1:
                loss += slope * np.log1p(difference) + noise.normal(scale=spread)
                rows.append(("pair", seed, length, loss))
    frame = pd.DataFrame(rows, columns=["quantizer", "seed", "length", "loss"])
    return frame.assign(judge="model", factor=1.0, steps=(100 * frame["length"]).round())


@pytest.mark.parametrize(
    ("difference", "spread", "outcome"),
    [
        (0.0, 1e-4, "equivalent"),
        (0.019, 1e-5, "equivalent"),
        (-0.05, 1e-4, "no worse"),
        (0.03, 1e-4, "worse"),
        (0.0, 1e-2, "not shown"),
    ],
)
def test_outcome(difference: float, spread: float, outcome: str) -> None:
    (row,) = equivalence.in_steps(runs(difference, spread)).to_dict("records")
    assert row["outcome"] == outcome
    assert row["seeds"] == 4
    if spread < 1e-2:
        assert row["steps"] == pytest.approx(difference, abs=3e-3)
    assert row["low"] < row["steps"] < row["high"]


def test_slope_of_a_noisy_curve_is_not_used() -> None:
    frame = runs(0.0)
    frame.loc[frame["length"] == 1.4, "loss"] += [0.0, 0.2, -0.2, 0.1]
    (row,) = equivalence.in_steps(frame).to_dict("records")
    assert row["slope_error"] > 0.2 * row["slope"]
    assert row["outcome"] == "not tested"
    assert np.isnan(row["steps"])


def test_diverged_runs() -> None:
    frame = runs(0.0)
    frame.loc[(frame["quantizer"] == "pair") & (frame["seed"] == 1), "loss"] = np.inf
    (row,) = equivalence.in_steps(frame).to_dict("records")
    assert row["outcome"] == "worse"
    frame = runs(0.0)
    frame.loc[(frame["quantizer"] == FULL) & (frame["seed"] == 1), "loss"] = np.inf
    (row,) = equivalence.in_steps(frame).to_dict("records")
    assert row["outcome"] == "not tested"


def test_slope() -> None:
    curve = runs(0.0).query("quantizer == @FULL")
    assert equivalence.slope(curve, 100) == pytest.approx((0.1, 0), abs=1e-3)


@pytest.mark.parametrize("losses", [[np.nan, np.inf, 0, 0], [np.nan] * 4])
def test_diverged_runs_are_worse(losses: list[float]) -> None:
    frame = runs(0.0)
    frame.loc[frame["quantizer"] == "pair", "loss"] = losses
    (row,) = equivalence.in_steps(frame).to_dict("records")
    assert row["outcome"] == "worse"
