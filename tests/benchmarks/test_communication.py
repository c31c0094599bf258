"""Time of steps with narrow messages, small."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import communication


def test_every_contender_is_measured(tmp_path: Path) -> None:
    given = ["--rounds", "1", "--width", "64", "--out", str(tmp_path)]
    assert communication.main(given) == 0
    found = json.loads((tmp_path / "communication.json").read_text())
    assert set(found["seconds"]) == set(communication.CONTENDERS)
    ratios = {name: each["ratio"] for name, each in found["traffic"].items()}
    assert ratios["plain DDP"] == 1 < ratios["B2048/tree@8s"] < ratios["B2048/DE@4s"]
    page = (tmp_path / "communication.md").read_text()
    assert page.count("\n| ") == 2 + len(communication.CONTENDERS)
    assert "| plain DDP |" in page
