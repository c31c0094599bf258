"""The measured tables of README.md are those of the committed results."""

from __future__ import annotations

import json
from statistics import median

import pytest

from benchmarks import readme


def test_tables_are_up_to_date() -> None:
    text = (readme.ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.updated(text) == text


def test_each_table_must_be_in_the_file_once() -> None:
    with pytest.raises(ValueError, match=r"README\.md must have one table 'speed', got 0"):
        readme.updated("no table")


def test_numbers_without_avx512() -> None:
    path = readme.REPORTS / "bench" / "avx2" / "training.json"
    result = json.loads(path.read_text(encoding="utf-8"))["workloads"][readme.WORKLOAD]

    def beside_torch(times: str, name: str) -> float:
        return median(result[times][name]) / median(result[times][readme.FUSED])

    steps, trainings = (
        [beside_torch(times, name) for name in ("qmaps 8 bits", "qmaps 4 bits")]
        for times in ("optimizer", "seconds")
    )
    text = " ".join((readme.ROOT / "README.md").read_text(encoding="utf-8").split())
    assert (
        "With AVX2 alone the 8-bit and the 4-bit step take {:.1f} and {:.1f} times as long as "
        "torch's, the training step {:.2f} and {:.2f} times".format(*steps, *trainings)
    ) in text
