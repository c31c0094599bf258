"""The CSV file and the clients of other packages."""

from __future__ import annotations

import copy
import csv
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from qmaps.capture import CapturedStates, Monitor
from qmaps.capture.monitor import COLUMNS
from qmaps.capture.monitor.outputs import CsvFile
from qmaps.errors import OutputError
from tests.capture.monitor.test_monitor import steps
from tests.training.runs import make, net


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_resumed_run_goes_on_without_repeating_a_step(tmp_path: Path) -> None:
    out = tmp_path / "runs" / "m.csv"
    optimizer = make("AdamW8bit", net().named_parameters())
    with Monitor(optimizer, out, every=2, parameters="*.weight"):
        steps(optimizer, 3)
        torch.save(optimizer.state_dict(), tmp_path / "o.pt")
        steps(optimizer, 3, first=3)
    content = out.read_text()
    assert [row["step"] for row in rows(out)] == [*"2222", *"4444", *"6666"]
    assert tuple(rows(out)[0]) == (*COLUMNS, "rows")
    assert {row["rows"] for row in rows(out)} == {"4"}
    assert rows(out)[0]["quantizer"] == "B256/DE-sym@8s"
    assert float(rows(out)[0]["sqnr_db"]) > 20

    again = make("AdamW8bit", net().named_parameters())
    again.load_state_dict(torch.load(tmp_path / "o.pt", weights_only=True))
    # The last row was cut off by a kill.
    out.write_text(content + "8,0.wei")
    with Monitor(again, out, every=2, parameters="*.weight") as monitor:
        with pytest.warns(
            UserWarning, match="has rows up to step 6; earlier steps are not written"
        ):
            steps(again, 6, first=3)  # 4 to 9
        assert monitor.rows[0]["step"] == 8
    assert [row["step"] for row in rows(out)] == [*"2222", *"4444", *"6666", *"8888"]
    assert out.read_text().startswith(content + "8,0.weight,exp_avg,")


def test_names_of_any_characters_do_not_end_the_training(tmp_path: Path) -> None:
    out, names = tmp_path / "m.csv", ["a\nb", "c\u2028d", "e\rf", "g\ud800h", 'i,"j"é']
    parameters = [torch.nn.Parameter(torch.ones(64, 80)) for _ in names]
    optimizer = make("AdamW8bit", list(zip(names, parameters, strict=True)))
    run = Run()
    for count in (2, 2):  # the second goes on in the file of the first
        with Monitor(optimizer, out, every=2, log=run, thresholds=None) as monitor:
            steps(optimizer, count)
        assert [row["parameter"] for row in monitor.rows[::2]] == names
    written = ["a\\nb", "c\\u2028d", "e\\rf", "g\\ud800h", 'i,"j"é']
    assert [row["parameter"] for row in rows(out)[::2]] == written * 2
    states = {name: {"exp_avg": torch.ones(2)} for name in names}
    assert len(CapturedStates.from_tensors(states).fingerprint()) == 64
    assert [name for name in run.logged[0][0] if "sqnr" in name and name.endswith("sq")] == [
        f"sqnr_db/{name}.exp_avg_sq" for name in written
    ]


@pytest.mark.parametrize("tail", ["4,2.wei", ""])
@pytest.mark.parametrize("lines", [1, 2, 3])
def test_a_file_cut_within_a_step_gets_the_rest_of_it(
    lines: int, tail: str, tmp_path: Path
) -> None:
    out = tmp_path / "m.csv"
    optimizer = make("AdamW8bit", net().named_parameters())
    with Monitor(optimizer, out, every=2, parameters="*.weight"):
        steps(optimizer, 2)
        saved = copy.deepcopy(optimizer.state_dict())
        steps(optimizer, 2, first=2)
    content = out.read_text()
    out.write_text("".join(content.splitlines(keepends=True)[:-lines]) + tail)
    optimizer.load_state_dict(saved)
    with Monitor(optimizer, out, every=2, window=1, parameters="*.weight"):
        steps(optimizer, 2, first=2)
    assert [row["step"] for row in rows(out)] == [*"2222", *"4444"]
    assert [row["parameter"] + row["state"] for row in rows(out)[:4]] == [
        row["parameter"] + row["state"] for row in rows(out)[4:]
    ]


@pytest.mark.parametrize(
    ("content", "remaining", "last"),
    [
        ("step,x,rows\nstep,x", "step,x,rows\n", 0),
        ("step,x,rows\n1,5,2\n1,6,2\n1", "step,x,rows\n1,5,2\n1,6,2\n", 1),
        ("step,x,rows\n1,5,1\n2,6,1\n2,", "step,x,rows\n1,5,1\n2,6,1\n", 2),
        ("step,x,rows\n1,5,1\n2,6,2\n2,", "step,x,rows\n1,5,1\n", 1),
        ("step,x,rows\n1,5,1\n2,6,2\n", "step,x,rows\n1,5,1\n", 1),
        ("step,x,rows\n1,5,2\n", "step,x,rows\n", 0),
        ("step,x,rows\n1,5,2\n1,6", "step,x,rows\n", 0),
    ],
)
def test_a_line_cut_by_a_kill_is_removed(
    content: str, remaining: str, last: int, tmp_path: Path
) -> None:
    out = tmp_path / "m.csv"
    out.write_text(content)
    file = CsvFile(out, ["step", "x"])
    file.close()
    assert (out.read_text(), file.last) == (remaining, last)


@pytest.mark.parametrize("content", ["step", "step,x,rows\n1,5,1\n"])
def test_a_file_that_cannot_be_written_is_refused(
    content: str, tmp_path: Path, monkeypatch: Any
) -> None:
    def denied(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    out = tmp_path / "m.csv"
    out.write_text(content)
    monkeypatch.setattr("os.truncate", denied)
    with pytest.raises(OutputError) as caught:
        CsvFile(out, ["step", "x"])
    assert str(caught.value) == (
        f"out={str(out)!r} cannot be written (Permission denied); give a writable file"
    )


def test_a_file_that_is_not_the_monitors_is_left_alone(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("qmaps.storage.locks.PATIENCE", 0.01)
    out = tmp_path / "m.csv"
    out.write_text("step,loss\n1,2\n")
    optimizer = make("AdamW8bit", net().parameters())
    with pytest.raises(OutputError) as caught:
        Monitor(optimizer, out)
    assert str(caught.value) == (
        f"out={str(out)!r} exists and is no file of a monitor with these columns; give another file"
    )
    assert out.read_text() == "step,loss\n1,2\n"
    with Monitor(optimizer, tmp_path / "n.csv"), pytest.raises(OutputError, match="written"):
        Monitor(optimizer, tmp_path / "n.csv")
    Monitor(optimizer, tmp_path / "n.csv").close()


def test_a_full_disk_does_not_end_the_training(tmp_path: Path, monkeypatch: Any) -> None:
    optimizer = make("AdamW8bit", net().parameters())
    with Monitor(optimizer, tmp_path / "m.csv", every=2, thresholds=None) as monitor:
        steps(optimizer, 2)
        before = (tmp_path / "m.csv").read_bytes()

        def full(*_: Any, **options: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Path, "open", full)
        with pytest.warns(UserWarning, match="cannot be written"):
            steps(optimizer, 4)
        monkeypatch.undo()
        assert monitor.rows[0]["step"] == 6
    assert (tmp_path / "m.csv").read_bytes() == before


class Run:
    """The used part of a W&B or trackio run: log(values, step=None)."""

    def __init__(self) -> None:
        self.logged: list[tuple[dict[str, Any], int | None]] = []

    def log(self, data: dict[str, Any], step: int | None = None) -> None:
        self.logged.append((data, step))


class Writer:
    """The used part of torch.utils.tensorboard.SummaryWriter."""

    def __init__(self) -> None:
        self.scalars: dict[tuple[str, int], float] = {}

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        assert global_step is not None
        self.scalars[tag, global_step] = scalar_value


def test_clients_get_the_measures_by_name_and_step() -> None:
    run, writer, calls = Run(), Writer(), []
    model = net()
    optimizer = make("AdamW8bit", model.parameters())
    log = [run, writer, lambda values, step: calls.append((step, values)), run.log]
    with Monitor(optimizer, None, every=2, names=model, log=log) as monitor:
        steps(optimizer, 4)
    assert [step for step, _ in calls] == [2, 4]
    assert [step for _, step in run.logged] == [2, 2, 4, 4]
    values = calls[1][1]
    assert values == run.logged[-1][0]
    assert {(name, 4): value for name, value in values.items()}.items() <= writer.scalars.items()
    row = next(r for r in monitor.rows if (r["parameter"], r["state"]) == ("2.weight", "exp_avg"))
    assert values["sqnr_db/2.weight.exp_avg"] == row["sqnr_db"]
    assert "zero_point_share/2.weight.exp_avg" not in values
    assert all(math.isfinite(value) for value in values.values())
