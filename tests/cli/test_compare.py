"""``qmaps compare``: what the arguments are, the tables, the files."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from qmaps.optim import Choice

FIRST, SECOND = "states/step-00000001.safetensors", "states/step-00000002.safetensors"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("choices")
    Choice("8bit", {"layers.1.weight": "4bit"}).save(folder / "a.json")
    Choice("8bit").save(folder / "b.json")
    return folder


def test_two_runs(call, place: Path, tmp_path: Path) -> None:
    # A run folder: its states are those in `states`.
    code, out, _ = call(
        f"compare {FIRST} . --out {tmp_path} --markdown {tmp_path}/new/c.md --top 1"
    )
    assert code == 0
    assert out.startswith(f"A: {FIRST}\nB: .\nmoments over the 2 parameters that both have")
    assert "second moments that differ most, 1 of 2 parameters" in out
    assert "(paper-4bit)" in out
    assert out.endswith(f"frames: {tmp_path}/compare\nmarkdown: {tmp_path}/new/c.md\n")
    moments = pd.read_parquet(tmp_path / "compare" / "moments.parquet")
    assert moments.groupby("run")["step"].unique().map(list).to_dict() == {"A": [1], "B": [2]}
    assert len(pd.read_parquet(tmp_path / "compare" / "errors.parquet")) == 2 * 3 * 6
    text = (tmp_path / "new" / "c.md").read_text()
    assert text.startswith(f"# A: {FIRST}, B: .\n\n`qmaps")
    assert f"A: {FIRST}, step 1, 3 parameters; B: {SECOND}, step 2, 3 parameters; qmaps" in text
    assert text.count("\n## ") == 3


def test_a_run_and_a_checkpoint(call, tmp_path: Path) -> None:
    pair = "--spec 'B128/DE@4s + B128/DE-0@4u'"
    code, out, _ = call(f"compare {FIRST} states {pair} --out {tmp_path} --json")
    assert code == 0
    found = json.loads(out)
    assert found["shared"] == ["layers.0.weight", "layers.1.weight"]
    assert {row["quantizer"] for row in found["errors"]} == {"B128/DE@4s + B128/DE-0@4u"}
    code, _, err = call(f"compare {FIRST} optimizer.pt --out {tmp_path}/new")
    assert (code, err) == (
        2,
        f"error: {FIRST!r} and 'optimizer.pt' have no parameter in common (such as "
        "layers.0.weight and group0.param0)\n",
    )
    assert not (tmp_path / "new").exists()


def test_two_choices(call, files: Path, tmp_path: Path) -> None:
    code, out, _ = call(f"compare {files}/a.json {files}/b.json")
    assert code == 0
    assert "1 of 2 patterns differ" in out
    assert "4.25 │   8.12" in out
    options = f"--states . --markdown {tmp_path}/c.md --json"
    code, out, _ = call(f"compare {files}/a.json {files}/b.json {options}")
    assert code == 0
    found = json.loads(out)
    differ = {row["parameter"] for row in found["parameters"] if row["differs"]}
    assert differ == {"layers.1.weight"}
    a, b = found["choices"]
    assert a["step_cost"] > b["step_cost"] > 0
    assert a["nbytes"] < b["nbytes"]
    text = (tmp_path / "c.md").read_text()
    assert "## 1 of 3 parameters differ" in text
    assert "## replay of simulated gradients" in text


BAD = {
    "compare {f}/a.json states": "a='{f}/a.json' is a choice of quantizers and b='states' is a "
    "run's states; give two of one kind",
    "compare states none": "'none' does not exist",
    "compare {f}/a.json none.json": "'none.json': it cannot be read (No such file or directory)",
    "compare states states --states states": "states='states' is for choices, not for runs",
    "compare {f}/a.json {f}/b.json --out x": "out='x' is for runs, not for choices",
    "compare states states --markdown states": "markdown='states' cannot be written (Is a "
    "directory); give a writable file",
    "compare states states --out /proc/none": "out='/proc/none/compare' cannot be written (No such "
    "file or directory); give a writable folder",
}


@pytest.mark.parametrize("command", BAD)
def test_bad_input_writes_nothing(command: str, call, files: Path, place: Path) -> None:
    before = sorted(place.iterdir())
    code, out, err = call(command.format(f=files))
    assert (code, out, err) == (2, "", f"error: {BAD[command].format(f=files)}\n")
    assert sorted(place.iterdir()) == before
