"""The benchmark of a sweep's workers, with small states."""

from __future__ import annotations

import time
from pathlib import Path

import pandas as pd
import pytest
import torch

from benchmarks import scale
from qmaps.capture import CapturedStates
from qmaps.sweep.plan import items_of

pytestmark = pytest.mark.slow


def test_measured_and_modelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "spin", time.process_time)  # at once; a core spins for a second
    options = ["--width", "48", "--pairs", "2", "--rounds", "1", "--out", str(tmp_path)]
    assert scale.main(options) == 0
    rows = pd.read_csv(tmp_path / "scale.csv")
    assert rows["workers"].tolist() == list(scale.MODELLED)
    assert rows["measured"].notna().tolist() == [True, True, *[False] * 5]
    page = (tmp_path / "scale.md").read_text()
    assert "2 pairs over 0.226M elements in matrices of GPT-2 small" in page
    assert "two minutes on two cores, is 240 s, or 19.3 ns." in page
    assert all(f"| {workers} |" in page for workers in scale.MODELLED)


def test_states_of_gpt2_small_and_a_hundred_pairs() -> None:
    assert len(set(scale.PAIRS)) == len(scale.PAIRS) == 100
    items = scale.planned(scale.PAIRS)
    elements = {item.parameter: item.numel for item in items}
    assert sum(elements.values()) == 50257 * 768 + 1024 * 768 + 12 * 12 * 768**2
    work = {item.parameter: item.work for item in items}
    assert work["wte"] == pytest.approx(100 * 2**20, rel=0.01)  # of a sample
    assert max(work.values()) == 100 * 4 * 768**2


def test_the_busiest_worker_and_the_reading_bound_the_time() -> None:
    shapes = {"a": (80, 80), "b": (100, 64), "c": (200, 64)}
    states = {name: {"m": torch.randn(shape)} for name, shape in shapes.items()}
    items = items_of(CapturedStates.from_tensors(states), ["B64/DE@4s"])
    assert scale.model(items, 1, 0.1) == 1
    assert scale.model(items, 2, 0.1) == scale.model(items, 64, 0.1) == 0.5
    assert scale.model(items, 64, 0.7) == 0.7
    assert scale.parallel_share(items[:2], 2) == pytest.approx(0.5)
