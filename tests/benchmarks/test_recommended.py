"""The benchmark of recommended quantizers."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from benchmarks import recommended
from benchmarks.recommended import NAME, SIBLING
from benchmarks.trials import FULL, Trial
from qmaps.lab.workloads.gpt import GPTShape
from qmaps.lab.workloads.stdlib_lm import StdlibLMTiny
from qmaps.optim import Choice
from reproduction import judges

pytestmark = pytest.mark.slow


def test_a_trial_trains_with_a_choice(tmp_path: Path) -> None:
    work = StdlibLMTiny(steps=3, warmup_steps=1, validation_batches=1)
    first, second = SIBLING.split(" + ")
    file = tmp_path / "choice.json"
    Choice({"exp_avg": first, "exp_avg_sq": second}).save(file)
    own, same = Trial("x", work, NAME, 0, str(file)), Trial("x", work, SIBLING, 0)
    assert own.run()["loss"] == same.run()["loss"]
    key = own.key
    assert key != Trial("x", work, NAME, 0).key
    Choice("8bit").save(file)
    assert own.key != key


def test_the_choice_is_of_another_seed_and_kept(tmp_path: Path, monkeypatch) -> None:
    shape = GPTShape(context=16, width=32, layers=1, heads=2)
    work = StdlibLMTiny(shape=shape, steps=8, warmup_steps=2, validation_batches=1)
    monkeypatch.setitem(judges.JUDGES, "lm-tiny", work)
    file = recommended.choice("lm-tiny", tmp_path)
    assert Choice.load(file).provenance["gradients"] == "recorded"
    monkeypatch.setattr(recommended, "record", None)
    assert recommended.choice("lm-tiny", tmp_path) == file
    due = recommended.trials("lm-tiny", file)
    assert len(due) == 4 * 8
    assert {trial.choice for trial in due if trial.quantizer == NAME} == {str(file)}
    assert {trial.choice for trial in due if trial.quantizer != NAME} == {""}


def test_differences_are_paired_by_seed() -> None:
    rows = [
        {"judge": "lm-tiny", "quantizer": q, "seed": seed,
         "loss": seed + off + 0.01 * seed * (q == NAME)}
        for q, off in ((NAME, 0.1), (SIBLING, 0.3), (recommended.PAPER, 0.5), (FULL, 0.0))
        for seed in range(3)
    ]  # fmt: skip
    found = recommended.differences(pd.DataFrame(rows)).set_index(["one", "other"])
    row = found.loc[NAME, FULL]
    assert row["difference"] == pytest.approx(0.11)
    assert row["seeds"] == 3
    assert row["high"] - row["low"] == pytest.approx(2 * 4.302653 * 0.01 / 3**0.5)
    assert found.loc[(NAME, SIBLING), "difference"] == pytest.approx(-0.19)


def test_numbers_of_the_documentation() -> None:
    root = Path(__file__).parents[2]
    rows = recommended.differences(pd.read_csv(root / "reports" / "recommended.csv"))
    row = rows.set_index(["judge", "one", "other"]).loc["minilm", NAME, SIBLING]
    better, least, most = (abs(row[name]) for name in ("difference", "high", "low"))
    guide = " ".join((root / "docs" / "recommend.md").read_text("utf-8").split())
    assert f"of `minilm`, by {better:.4f} nats ({least:.4f} to {most:.4f}) against `4bit`" in guide
