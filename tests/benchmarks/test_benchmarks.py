"""The harness, not the speeds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.timing import interleaved, summary

ROOT = Path(__file__).parents[2]


def test_contenders_take_turns_and_the_first_round_is_not_counted() -> None:
    order: list[str] = []
    works = {name: (lambda name=name: order.append(name)) for name in "abc"}
    seconds = interleaved(works, rounds=2)
    assert order == [*"abc"] * 3
    assert {name: len(times) for name, times in seconds.items()} == {"a": 2, "b": 2, "c": 2}


def test_summary_is_per_element() -> None:
    assert summary([3e-6, 1e-6, 2e-6], elements=1000) == {"median": 2.0, "q1": 1.5, "q3": 2.5}
    assert summary([4e-6], elements=1000) == {"median": 4.0, "q1": 4.0, "q3": 4.0}


def test_the_command_writes_a_table_and_json(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "--scale", "0.0005", "--rounds", "1"]
    command += ["--only", "four matrices", "--out", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    results = json.loads((tmp_path / "cpu.json").read_text())
    assert "native" in results["about"]["backend"] or "reference" in results["about"]["backend"]
    assert len(results["cases"]) == 6
    for case in results["cases"]:
        times = case["ns_per_element"]
        for peer, ratio in case["ratios"].items():
            assert ratio == times[peer]["median"] / times["qmaps"]["median"]
        assert set(case["ratios"]) == {"torch fused", "torch foreach", "torch for-loop"}
    text = (tmp_path / "cpu.md").read_text()
    assert all(case["name"] in text for case in results["cases"])
