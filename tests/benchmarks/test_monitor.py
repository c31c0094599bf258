"""The benchmark of monitors, with small models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import monitor

pytestmark = pytest.mark.slow


def test_every_kind_of_step_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "PRESETS", ("8bit",))
    threads = torch.get_num_threads()
    try:
        arguments = ["digits", "--rounds", "7", "--every", "4", "--out", str(tmp_path)]
        assert monitor.main(arguments) == 0
    finally:
        torch.set_num_threads(threads)
    results = json.loads((tmp_path / "monitor.json").read_text())["found"]
    row = results["digits, 8bit"]
    assert row["states"] > 0
    # All four steps are in the window; it is at most `every` steps long.
    spent = 3 * row["window"] + row["measured"]
    assert row["wait"] == 0 < spent
    assert row["share"] == pytest.approx(spent / (4 * row["step"]))
    assert "| digits | 8bit |" in (tmp_path / "monitor.md").read_text()
