"""Steps of 8-bit Adafactor, timed twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import adafactor
from benchmarks.case import UnavailableError

pytestmark = pytest.mark.slow


def test_every_contender_is_measured_or_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_: object) -> None:
        raise UnavailableError("not installed")

    # It compiles itself, which takes half a minute.
    monkeypatch.setitem(adafactor.CONTENDERS, "torchao AdamW8bit", missing)
    arguments = ["--rounds", "2", "--scale", "0.001", "--out", str(tmp_path)]
    assert adafactor.main(arguments) == 0
    results = json.loads((tmp_path / "adafactor.json").read_text())
    assert set(results["ratios"]) | set(results["skipped"]) == set(adafactor.CONTENDERS)
    assert results["skipped"]["torchao AdamW8bit"] == "not installed"
    assert results["ratios"][adafactor.OURS] == {"ratio": 1, "q1": 1, "q3": 1}
    assert all(each["ratio"] > 0 for each in results["ratios"].values())
    written = (tmp_path / "adafactor.md").read_text()
    assert f"`{results['about']['command']}`" in written
    assert "torchao AdamW8bit is left out: not installed.\n" in written
    assert all(f"| {name} | " in written for name in results["ratios"])


def test_our_states_are_all_quantized() -> None:
    params = adafactor.parameters([(96, 64)])
    for name in (adafactor.OURS, "Adafactor8bit, first moment", "Adafactor8bit, not factored"):
        memory = adafactor.CONTENDERS[name](params).__self__.memory()
        assert all(row.quantizer for row in memory.rows), name


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        adafactor.main(["--scale", "2"])
    assert "error: --scale 2 must be above 0 and at most 1\n" in capsys.readouterr().err
    (tmp_path / "file").touch()
    arguments = ["--rounds", "1", "--scale", "0.001", "--out", str(tmp_path / "file" / "x")]
    assert adafactor.main(arguments) == 2
    assert "cannot be written" in capsys.readouterr().err
