"""The parity table, small."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from benchmarks import parity


def test_differences_are_in_units_of_the_spread() -> None:
    rows = [
        ("AdamW", "32bit", 0, 1.0),
        ("AdamW", "32bit", 1, 3.0),
        ("AdamW", "4bit", 0, 2.0),
        ("AdamW", "4bit", 1, 8.0),
    ]
    frame = pd.DataFrame(rows, columns=["optimizer", "width", "seed", "loss"])
    table = parity.summary(frame.assign(workload="w", state_mib=1.0, steps=1))
    full, four = table.to_dict("records")
    assert full["in_spreads"] == 0
    assert four["difference"] == 3.0
    assert four["spread"] == pytest.approx(2**0.5)
    assert four["in_spreads"] == pytest.approx(3 / 2**0.5)
    assert "| **+2.12** |" in parity.markdown(table, "command")


def test_every_optimizer_trains_in_every_width(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["digits", "--seeds", "1", "--steps", "2", "--runs", str(tmp_path / "runs")]
    assert parity.main([*given, "--out", str(tmp_path)]) == 0
    frame = pd.read_csv(tmp_path / "parity.csv")
    assert len(frame) == 4 * len(parity.FAMILIES)
    assert frame["loss"].notna().all()
    # States get smaller with their width, but for those that presets leave in 32 bits.
    sizes = frame.pivot(index="optimizer", columns="width", values="state_mib")
    assert (sizes["8bit"] <= sizes["32bit"]).all()
    for four in ("4bit", "paper-4bit"):
        assert (sizes[four] < 0.6 * sizes["32bit"]).drop(["Adafactor", "SM3"]).all()
    assert (tmp_path / "parity.md").read_text().count("\n| ") == 2 + len(frame)


def test_other_quantizers_for_adamw(tmp_path: Path) -> None:
    given = ["digits", "--seeds", "1", "--steps", "2", "--runs", str(tmp_path / "runs")]
    pairs = ["--pair", "B128/DE@4s+sr + 32bit", "--pair", "32bit + B128/DE-0@4u"]
    assert parity.main([*given, "--optimizer", "AdamW", *pairs, "--out", str(tmp_path)]) == 0
    frame = pd.read_csv(tmp_path / "parity.csv").set_index("width")["state_mib"]
    assert list(frame.index[4:]) == pairs[1::2]
    assert (frame["4bit"] < frame[pairs[1::2]]).all()
    assert (frame[pairs[1::2]] < frame["32bit"]).all()


def test_bad_input(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert parity.main(["digits", "--out", str(tmp_path / "file" / "x")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert parity.main(["digits", "--out", str(tmp_path), "--pair", "B128/DE@4s"]) == 2
    message = "error: --pair 'B128/DE@4s' must be two specs with ' + ' between them\n"
    assert capsys.readouterr().err == message
