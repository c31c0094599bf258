"""The cost of a monitor, small."""

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
        given = ["digits", "--rounds", "7", "--every", "4", "--out", str(tmp_path)]
        assert monitor.main(given) == 0
    finally:
        torch.set_num_threads(threads)
    found = json.loads((tmp_path / "monitor.json").read_text())["found"]
    each = found["digits, 8bit"]
    assert each["states"] > 0
    # All four steps are of the window, which is no longer than `every`.
    spent = 3 * each["window"] + each["measured"]
    assert each["wait"] == 0 < spent
    assert each["share"] == pytest.approx(spent / (4 * each["step"]))
    assert "| digits | 8bit |" in (tmp_path / "monitor.md").read_text()
