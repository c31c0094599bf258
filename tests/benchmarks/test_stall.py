"""The report on Lion's momentum has a row for each optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import stall

pytestmark = pytest.mark.slow


def test_the_report_has_the_relative_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, make = next(iter(stall.OPTIMIZERS.items()))
    monkeypatch.setattr(stall, "OPTIMIZERS", {name: make})
    assert stall.main(["--seeds", "2", "--steps", "2", "--out", str(tmp_path)]) == 0
    cells = (tmp_path / "stall.md").read_text(encoding="utf-8").split("| --- |\n")[1].split("|")
    assert (cells[1].strip(), cells[2].strip()) == (name, "2")
    mean, least, largest = (float(cell) for cell in cells[3:6])
    assert 0.9 < least <= mean <= largest < 1
