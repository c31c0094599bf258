"""The benchmark of huge pages."""

from __future__ import annotations

import pytest
import torch

from benchmarks import huge_pages as benchmark
from qmaps.engines import huge_pages

pytestmark = pytest.mark.slow


def test_each_work_is_done_with_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(huge_pages, "_advise", lambda x: seen.append(x.nbytes))
    monkeypatch.setattr(huge_pages, "LEAST", 1 << 16)
    found = benchmark.measure(1 / 256, 2)
    assert all(len(each) == 2 for both in found.values() for each in both.values())
    assert [name for name in found if "first step" in name] == [
        "AdamW, first step",
        "AdamW8bit, first step",
        "AdamW4bit, first step",
    ]
    assert huge_pages.LEAST == 1 << 16
    assert seen.count(1 << 16) >= 4  # codes of 8 bits: what is decoded, and one for each turn
    before = len(seen)
    with benchmark.asking(False):
        benchmark.quantizer("B256/DE@8s").quantize(benchmark.normal((1 << 18,)))
    assert len(seen) == before


def test_the_command_prints_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    both = {False: [1.0, 1.0, 1.0], True: [0.5, 0.5, 0.5]}
    monkeypatch.setattr(benchmark, "measure", lambda *_: {"one": both, "other": both})
    threads = torch.get_num_threads()
    try:
        assert benchmark.main(["--rounds", "3"]) == 0
    finally:
        torch.set_num_threads(threads)
    text = capsys.readouterr().out
    assert text.count("| work |") == 1
    assert "| `one` | 0.50 | 0.50 to 0.50 | 0.50 |\n| `other` | 0.50 |" in text
