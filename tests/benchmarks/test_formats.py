"""The benchmark that trains with published formats."""

from __future__ import annotations

import pandas as pd
import pytest

from benchmarks import formats
from benchmarks.formats import SEEDS, differences, page
from benchmarks.trials import FULL

pytestmark = pytest.mark.slow


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
        {"judge": "x", "quantizer": pair, "seed": seed, "loss": 3.0 + seed + number / 100}
        for number, pair in enumerate([FULL, *dict.fromkeys(formats.formats().values())])
        for seed in range(4)
    ]
    lost = formats.formats()["preset `4bit`"]
    next(row for row in reversed(rows) if row["quantizer"] == lost)["loss"] = float("nan")
    frame = pd.DataFrame(rows)
    found = differences(frame).set_index("method")
    assert found.loc["8-bit Adam", "difference"] == pytest.approx(0.01)
    assert found.loc["8-bit Adam", ["low", "high"]].tolist() == pytest.approx([0.01, 0.01])
    assert found.loc["preset `4bit`", ["seeds", "lost"]].tolist() == [4, 1]
    text = page(found.reset_index().assign(one_step=0.25), "COMMAND")
    told = "0.25 | +0.0100 | +0.0100 to +0.0100 | 0 of 4 |"
    assert f"| 8-bit Adam | `B2048/DE@8s + B2048/DE@8u` | {told}" in text
    assert "| preset `4bit` | `B128/DE@4s+sr + B128/DE-0@4u` | 0.25 |  |  | 1 of 4 |" in text
