"""The benchmark of checkpoints, with small models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import checkpoints

pytestmark = pytest.mark.slow


def test_every_optimizer_is_measured(tmp_path: Path) -> None:
    arguments = ["--rounds", "2", "--width", "128", "--out", str(tmp_path)]
    assert checkpoints.main(arguments) == 0
    results = json.loads((tmp_path / "checkpoints.json").read_text())["found"]
    assert set(results) == set(checkpoints.OPTIMIZERS)
    sizes = [results[name]["bytes"] for name in checkpoints.OPTIMIZERS]
    assert sizes[0] > 8
    assert sizes[1] < 0.5 * sizes[0]
    assert sizes[2] < 0.7 * sizes[1]
    page = (tmp_path / "checkpoints.md").read_text()
    assert all(f"| {name} |" in page for name in checkpoints.OPTIMIZERS)
