"""The benchmark of a step on more cores."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

from benchmarks import cores, machine
from benchmarks.cores import Processor, modelled, nanoseconds, thread_counts


def test_the_longer_of_arithmetic_and_memory() -> None:
    assert nanoseconds(1.0, 16, 2, 20e9) == 0.8
    assert nanoseconds(2.0, 16, 2, 20e9) == 1.0


def test_thread_counts() -> None:
    assert thread_counts(1) == [1]
    assert thread_counts(4) == [1, 2, 4]
    assert thread_counts(6) == [1, 2, 4, 6]


def test_other_processors() -> None:
    frame = pd.DataFrame(
        {
            "threads": 1,
            "step": list(cores.STEPS),
            "arithmetic": [0.7, 1.0, 1.4],
            "bytes": [28.0, 16.0, 14.0],
        }
    )
    # 28 bytes at 80 GB/s take 0.35 ns, as long as the arithmetic of two cores.
    found = modelled(frame, Processor("some", 10, 100.0))
    assert found == ["some", "10", "100", "2", "5", "1.75", "8", "2.00"]


def test_the_command_writes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "SMALL", (1 << 12, 1 << 13))
    before = torch.get_num_threads()
    given = ["--rounds", "2", "--scale", "0.001", "--threads", "2", "--out", str(tmp_path)]
    assert cores.main([*given, "--processor", "8", "50"]) == 0
    assert torch.get_num_threads() == before
    frame = pd.read_csv(tmp_path / "cores.csv")
    assert frame["threads"].tolist() == [1, 1, 1, 2, 2, 2]
    assert frame["machine"].unique().tolist() == [machine.processor()]
    text = (tmp_path / "cores.md").read_text()
    assert "| 8 cores, 50 GB/s | 8 | 50 |" in text
    assert "| server, 12 channels of DDR5-4800 | 64 | 460.8 |" in text
