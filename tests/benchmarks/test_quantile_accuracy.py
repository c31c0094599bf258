from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import quantile_accuracy as command

pytestmark = pytest.mark.slow


def test_errors_in_rank_and_in_value() -> None:
    ascending = torch.arange(512.0)
    levels = (torch.arange(256).double() + 0.5) / 256 * 511
    assert set(command.errors(levels.float(), ascending).values()) == {0.0}
    found = command.errors(levels.float() + 10, ascending)
    # An estimate between two elements is no error in rank.
    assert found["mean rank error"] == pytest.approx(10 / 512, rel=0.1)
    assert found["largest rank error"] == pytest.approx(10 / 512, rel=0.1)
    assert found["median relative error"] == pytest.approx(10 / 255.5, rel=0.01)
    size = levels.square().mean().sqrt().item()
    assert found["RMS error over RMS"] == pytest.approx(10 / size, rel=1e-5)


def test_values_that_repeat_have_many_ranks() -> None:
    found = command.errors(torch.full((256,), 2.0), torch.full((1000,), 2.0))
    assert set(found.values()) == {0.0}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "table.md"
    given = ["--elements", "9000", "--device", "cpu", "--out", str(out)]
    assert command.main(given) == 0
    rows = [line.split(" | ") for line in out.read_text().splitlines() if " | `" in line]
    assert len(rows) == len(command.METHODS) * len(command.DISTRIBUTIONS)
    for row in rows:
        exact = row[1] == "`exact`"
        assert all((cell.strip(" |") == "0") == exact for cell in row[2:]), row
    with pytest.raises(SystemExit):
        command.main(["--elements", "3"])
    assert "--elements=3 must be at least 256" in capsys.readouterr().err
