"""The report on gradient release has a row for each optimizer, and checks the losses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import release
from benchmarks.process import in_fresh_process
from qmaps.errors import BadValueError

pytestmark = pytest.mark.slow


def test_the_report_has_both_peaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(release, "OPTIMIZERS", ("AdamW8bit",))
    started = []

    def once(module: str, *arguments: str) -> dict[str, Any]:
        """Run the first one in a process, and the others here: a process takes seconds to start."""
        started.append(module)
        if len(started) == 1:
            return in_fresh_process(module, *arguments)
        assert release.main(arguments) == 0
        return json.loads(capsys.readouterr().out)

    monkeypatch.setattr(release, "in_fresh_process", once)
    sizes = ["--layers", "2", "--width", "96"]
    assert release.main([*sizes, "--out", str(tmp_path)]) == 0
    row = (tmp_path / "release.md").read_text(encoding="utf-8").split("| --- |\n")[1].split("|")
    assert row[1].strip() == "`AdamW8bit`"
    assert len(started) == 2
    assert all(float(cell) >= 0 for cell in row[2:6])


def test_losses_that_differ_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fresh(*arguments: str) -> dict[str, Any]:
        return {"losses": [1.0 if release.PLAIN in arguments else 2.0]}

    monkeypatch.setattr(release, "in_fresh_process", fresh)
    with pytest.raises(BadValueError) as caught:
        release.rows(1, 8)
    assert str(caught.value) == "losses of AdamW differ: [1.0] [2.0]"
