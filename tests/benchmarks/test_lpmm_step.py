"""Training steps in low precision, timed once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import lpmm_step

pytestmark = pytest.mark.slow


def test_every_contender_is_measured(tmp_path: Path) -> None:
    options = ["--rounds", "2", "--scale", "0.001", "--out", str(tmp_path)]
    assert lpmm_step.main(["digits", *options]) == 0
    results = json.loads((tmp_path / "step.json").read_text())
    ratios = results["ratios"]["digits"]
    assert set(ratios) == set(lpmm_step.CONTENDERS)
    for plain in (lpmm_step.PLAIN, lpmm_step.PLAIN_ADAM):
        assert ratios[plain] == {"ratio": 1, "q1": 1, "q3": 1}
    assert all(each["ratio"] > 0 for each in ratios.values())
    written = (tmp_path / "step.md").read_text()
    assert f"`{results['about']['command']}`" in written
    assert all(f"| digits | {label} | " in written for label in ratios)
    alone = results["alone"]
    assert set(alone) == set(lpmm_step.ALONE)
    assert alone[lpmm_step.EIGHT_BITS]["ratio"] == 1
    for label, each in alone.items():
        assert each["ns"] > 0
        assert f"| {label} | {each['ratio']:.2f} | " in written


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        lpmm_step.main(["digit"])
    assert "error: WORKLOAD='digit' is none of digits, stdlib-lm-tiny\n" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert lpmm_step.main(["digits", "--rounds", "1", "--out", str(tmp_path / "file" / "x")]) == 2
    assert "cannot be written" in capsys.readouterr().err
