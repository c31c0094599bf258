"""Steps on sharded parameters, small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import sharded

pytestmark = pytest.mark.slow


def test_every_optimizer_steps_on_two_ranks(tmp_path: Path) -> None:
    assert sharded.main(["--width", "96", "--rounds", "1", "--out", str(tmp_path)]) == 0
    ratios = json.loads((tmp_path / "sharded.json").read_text())["ratios"]
    assert set(ratios) == set(sharded.OPTIMIZERS)
    assert ratios[sharded.TORCH] == 1
    assert min(ratios.values()) > 0
    written = (tmp_path / "sharded.md").read_text()
    assert all(f"| {name} | " in written for name in ratios)


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        sharded.main(["--width", "0"])
    assert "'0' must be a whole number of at least 1" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert sharded.main(["--out", str(tmp_path / "file" / "x")]) == 2
    assert "cannot be written" in capsys.readouterr().err
