"""The report on falling second moments has a row for each pair."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import fall
from qmaps.optim.presets import pair_of

pytestmark = pytest.mark.slow


def test_every_format_of_the_page_and_every_preset_is_measured() -> None:
    of = fall.pairs()
    for name in ("preset `4bit`", "8-bit AdamW of bitsandbytes", "4-bit AdamW of torchao"):
        assert name in of


def test_a_row_has_both_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = {"nearest": "B256/DE@8s + B256/DE@8u", "even": "B256/DE@8s + B256/geometric@8u+qsr"}
    monkeypatch.setattr(fall, "pairs", lambda: {name: pair_of(of) for name, of in pairs.items()})
    monkeypatch.setattr(fall, "BETAS", (0.9, 0.998))
    assert fall.main(["--out", str(tmp_path)]) == 0
    text = (tmp_path / "fall.md").read_text(encoding="utf-8")
    assert "after 1,500 steps at beta2 = 0.998" in text
    lines = text.split("| --- |\n")[1].splitlines()[:2]
    found = {cells[1].strip(): cells[2:5] for cells in (line.split("|") for line in lines)}
    for name, (spec, ratio, noise) in found.items():
        assert spec.strip() == f"`{pairs[name]}`"
        assert (float(ratio) > 5) == (name == "nearest")
        assert 0 < float(noise) < 0.01
