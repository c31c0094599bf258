"""The benchmark of a step on more cores."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

from benchmarks import cores, machine
from benchmarks.cores import Processor, enough, modelled, nanoseconds, thread_counts

pytestmark = pytest.mark.slow


def test_the_longer_of_arithmetic_and_memory() -> None:
    assert nanoseconds(1.0, 16, 2, 20e9) == 0.8
    assert nanoseconds(2.0, 16, 2, 20e9) == 1.0


def test_thread_counts() -> None:
    assert thread_counts(1) == [1]
    assert thread_counts(4) == [1, 2, 4]
    assert thread_counts(6) == [1, 2, 4, 6]


def test_cores_that_memory_keeps_busy() -> None:
    assert enough(1.0, 16, 32e9) == 2
    assert enough(0.7, 28, 80e9) == 2  # not 3, as 0.7 * 80 / 28 in float64 would be
    assert enough(1.01, 16, 32e9) == 3
    assert enough(0.1, 16, 32e9) == 1


def test_bytes_of_steps() -> None:
    nbytes = {
        optimizer: [round(step.nbytes, 4) for step in steps.values()]
        for optimizer, steps in cores.STEPS.items()
    }
    # Parameter read and written, gradient read: 12; a state of 32 bits 8, of 8 bits 2 and scales.
    eight, four = 1 + 4 / 256, 0.5 + 4 / 128
    assert nbytes == {
        "AdamW": [28, 12 + 4 * eight, 12 + 4 * four],
        "SGD with momentum": [20, round(12 + 2 * eight, 4), 12 + 2 * four],
        "LAMB": [44, round(20 + 6 * eight, 4), round(20 + 6 * four, 4)],
        "LARS": [32, round(20 + 3 * eight, 4), round(20 + 3 * four, 4)],
    }


def test_other_processors() -> None:
    frame = pd.DataFrame(
        {
            "threads": 1,
            "step": list(cores.STEPS["AdamW"]),
            "arithmetic": [0.7, 1.0, 1.4],
            "bytes": [28.0, 16.0, 14.0],
        }
    )
    # 28 bytes at 80 GB/s take 0.35 ns, as long as the arithmetic of two cores.
    predicted = modelled(frame, Processor("some", 10, 100.0))
    assert predicted == ["some", "10", "100", "2", "5", "1.75", "8", "2.00"]


def test_the_command_writes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "SMALL", (1 << 12, 1 << 13))
    before = torch.get_num_threads()
    arguments = ["--rounds", "2", "--scale", "0.001", "--threads", "2", "--out", str(tmp_path)]
    assert cores.main([*arguments, "--processor", "8", "50"]) == 0
    assert torch.get_num_threads() == before
    frame = pd.read_csv(tmp_path / "cores.csv")
    assert frame["optimizer"].tolist() == [name for name in cores.STEPS for _ in range(6)]
    assert frame["threads"].tolist() == [1, 1, 1, 2, 2, 2] * 4
    assert (frame["measured"] > 0).all()
    assert frame["machine"].unique().tolist() == [machine.named(machine.about([])["machine"])]
    text = (tmp_path / "cores.md").read_text()
    assert text.count("\n| 8 cores, 50 GB/s | 8 | 50 |") == 4
    assert [line for line in text.splitlines() if line.startswith("###")] == [
        "### AdamW",
        "### SGD with momentum",
        "### LAMB",
        "### LARS",
    ]
    assert "| server, 12 channels of DDR5-4800 | 64 | 460.8 |" in text
