"""Workers of a sweep, small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import scale
from qmaps import sweep


def test_measured_and_modelled(tmp_path: Path) -> None:
    options = ["--side", "80", "--matrices", "3", "--pairs", "2", "--rounds", "2"]
    assert scale.main([*options, "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "scale.json").read_text())["found"]
    assert set(found) == {"one process", "reading", "1", "2"}
    assert all(len(seconds) == 2 for seconds in found.values())
    page = (tmp_path / "scale.md").read_text()
    assert "2 pairs over 3 matrices of 6400 elements" in page
    assert all(f"| {workers} |" in page for workers in scale.MODELLED)


def test_the_busiest_worker_and_the_reading_bound_the_time() -> None:
    shapes = {"a": (80, 80), "b": (100, 64), "c": (200, 64)}
    items = sweep.plan({name: {"m": torch.randn(s)} for name, s in shapes.items()}, ["B64/DE@4s"])
    assert scale.model(items, 1, 0.1) == 1
    assert scale.model(items, 2, 0.1) == scale.model(items, 64, 0.1) == 0.5
    assert scale.model(items, 64, 0.7) == 0.7
    assert scale.parallel_share(items[:2], 2) == pytest.approx(0.5)
