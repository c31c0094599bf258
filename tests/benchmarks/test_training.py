"""The benchmark of whole training steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import training
from benchmarks.case import UnavailableError
from benchmarks.training import FUSED, rows

pytestmark = pytest.mark.slow


def test_rows() -> None:
    results = {
        "seconds": {FUSED: [0.2, 0.2, 0.2], "ours": [0.1, 0.1, 0.1]},
        "optimizer": {FUSED: [0.1, 0.1, 0.1], "ours": [0.02, 0.02, 0.02]},
        "memory": {FUSED: {"resident": 100.4, "peak": 200.0}},
    }
    assert rows(results) == [
        (FUSED, "200", "50.0%", "1.000 (1.000 to 1.000)", "100", "200"),
        ("ours", "100", "20.0%", "0.500 (0.500 to 0.500)", "", ""),
    ]


def test_steps_and_memory_of_a_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {name: training.METHODS[name] for name in (FUSED, "qmaps 4 bits")}
    monkeypatch.setattr(training, "METHODS", chosen)
    assert training.main(["digits", "--rounds", "2", "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "training.json").read_text())
    digits = results["workloads"]["digits"]
    assert set(digits["seconds"]) == set(chosen)
    for name in chosen:
        assert len(digits["seconds"][name]) == 2
        wholes_and_parts = zip(digits["seconds"][name], digits["optimizer"][name], strict=True)
        assert all(0 < part < step for step, part in wholes_and_parts)
        assert 0 < digits["memory"][name]["resident"] <= digits["memory"][name]["peak"]
    text = (tmp_path / "training.md").read_text()
    assert "## digits" in text
    assert text.index("| torch fused |") < text.index("| qmaps 4 bits |")


def test_the_layout_of_gpt2() -> None:
    work = training.get("gpt2-4-layers")
    with torch.device("meta"):
        shapes = {name: tuple(p.shape) for name, p in work.build().named_parameters()}
    assert shapes["blocks.3.qkv.weight"] == (3 * 768, 768)
    assert shapes["blocks.3.down.weight"] == (768, 4 * 768)
    assert not any(name.startswith("blocks.4.") for name in shapes)
    assert shapes["tokens.weight"] == shapes["head.weight"] == (16384, 768)
    inputs, targets = work.batch(1, 0)
    assert inputs.shape == targets.shape == (2, 128)
    assert set(training.ABOUT) == set(training.OWN)


def test_a_missing_peer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_) -> None:
        raise UnavailableError("not installed")

    monkeypatch.setattr(training, "METHODS", {"peer": missing})
    results = training.measure("digits", 1)
    assert results["skipped"] == {"peer": "not installed"}
    assert rows(results) == []
