"""The benchmark that trains with published formats."""

from __future__ import annotations

import pandas as pd
import pytest

from benchmarks import formats
from benchmarks.formats import SEEDS, differences, page
from benchmarks.trials import FULL


def test_all_pairs_of_the_page_are_trained() -> None:
    found = formats.formats()
    assert found["FlashAdamW"] == "B32xf16/softsign@8s + B32xf16sq/sqrt@8u"
    assert found["precision-aware Adam, bfloat16"] == "bf16 + bf16"
    assert "8-bit Muon" not in found  # one state
    due = formats.trials("lm-tiny")
    pairs = {trial.quantizer for trial in due}
    assert pairs == {FULL, *found.values()}
    assert len(due) == SEEDS * len(pairs)


def test_differences_are_taken_seed_by_seed() -> None:
    rows = [
        {"judge": "x", "quantizer": pair, "seed": seed, "loss": 3.0 + seed + number}
        for number, pair in enumerate([FULL, *dict.fromkeys(formats.formats().values())])
        for seed in range(4)
    ]
    rows[-1]["loss"] = float("nan")  # the preset 4bit with the last seed
    frame = pd.DataFrame(rows)
    found = differences(frame).set_index("method")
    assert found.loc["8-bit Adam", "difference"] == pytest.approx(1.0)
    assert found.loc["8-bit Adam", ["low", "high"]].tolist() == pytest.approx([1.0, 1.0])
    assert found.loc["preset `4bit`", "seeds"] == 3
    text = page(frame, "COMMAND")
    assert "| 8-bit Adam | `B2048/DE@8s + B2048/DE@8u` | +1.0000 | +1.0000 to +1.0000 | 4 |" in text
