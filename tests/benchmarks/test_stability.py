"""The figure of many runs' final losses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.ablations.stability import stability
from tests.figures import checks

pytestmark = pytest.mark.slow


def stability_frame() -> pd.DataFrame:
    """A setting whose runs are all stable, one with a few unstable runs, one without a stable."""
    random = np.random.default_rng(0)
    rows = []
    for setting, unstable in (("32 bits", 0), ("B2048/DE@4u", 3), ("tensor/linear0@8u", 10)):
        losses = 2 + 0.1 * random.random(10)
        losses[:unstable] = np.where(np.arange(unstable) % 2, np.nan, 9.0)
        for number, loss in enumerate(losses):
            rows.append({"setting": setting, "loss": loss, "unstable": number < unstable})
    return pd.DataFrame(rows)


def test_what_holds_for_every_figure(tmp_path: Path) -> None:
    subject = checks.Subject(stability_frame(), "setting loss unstable", 2)
    checks.columns_are_enough(stability, subject)
    checks.missing_columns_are_named("stability", stability, subject)
    checks.a_frame_without_rows_is_refused("stability", stability, subject)
    checks.the_frame_is_left_alone(stability, subject)
    checks.text_is_legible_and_inside(stability(subject.frame))
    checks.equal_figures_give_equal_bytes(stability, subject, tmp_path)
    checks.names_are_literal_text("stability", stability, subject, tmp_path)


def test_tells_stable_runs_from_others() -> None:
    frame = stability_frame()
    runs, shares = stability(frame).axes
    assert [label.get_text() for label in runs.get_yticklabels()] == list(frame["setting"].unique())
    assert [bar.get_width() for bar in shares.patches] == [0, 30, 100]
    stable, unstable = runs.lines[1:3]
    part = frame[frame["setting"] == "B2048/DE@4u"]
    assert list(stable.get_xdata()) == list(part["loss"][~part["unstable"]])
    # Beyond the axis, which ends where stable runs do, and NaN: both at its edge.
    assert list(unstable.get_xdata()) == [runs.get_xlim()[1]] * 3
    assert 2.0 < runs.get_xlim()[1] < 2.2
    heights = np.concatenate([stable.get_ydata(), unstable.get_ydata()])
    assert len(set(heights)) == 10
    assert np.abs(heights - 1).max() <= 0.25


def test_without_a_stable_run() -> None:
    frame = pd.DataFrame({"setting": "a", "loss": [3.0, np.nan], "unstable": True})
    runs, _ = stability(frame).axes
    assert runs.get_xlim() == (2.0, 4.0)
    runs, _ = stability(frame.assign(loss=np.nan)).axes
    assert runs.get_xlim() == (0.0, 1.0)


def test_says_what_settings_are() -> None:
    figure = stability(stability_frame(), unit="bits", label="bits | map")
    assert figure.axes[0].get_xlabel() == "final loss (bits)"
    assert figure.axes[0].get_ylabel() == "bits | map"
