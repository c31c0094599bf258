"""The command line with odd arguments: one line, strict JSON, and early errors."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import qmaps
import qmaps.capture.conversion
from qmaps import figures, lab, sweep
from qmaps.cli import main
from qmaps.lab import workloads
from tests.lab.test_cli import blank

pytestmark = pytest.mark.slow

LONG = "x" * 300
NINES = "9" * 4301


def call(command: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(command)
    out, err = capsys.readouterr()
    return int(caught.value.code or 0), out, err


def strictly(text: str) -> object:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with captured states, a checkpoint, and modules without a model."""
    folder = tmp_path_factory.mktemp("odd")
    layer = torch.nn.Parameter(torch.zeros(80, 90))
    optimizer = torch.optim.AdamW([("$\\frac{1}$\n<b>", layer)], lr=float("inf"))
    optimizer.state[layer] = {
        "step": torch.tensor(1.0),
        "exp_avg": torch.randn(80, 90),
        "exp_avg_sq": torch.rand(80, 90),
    }
    qmaps.capture.StateRecorder(optimizer, folder / "states").record()
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    return folder


EMPTY = (
    "must be a size such as 7B, a config.json, a .safetensors file or its index, or a folder of "
    "them"
)
UNWRITABLE = {  # command: the message on an output, before any work
    "capture digits --out /proc/none": "out='/proc/none' cannot be written (No such file or "
    "directory); give a writable folder",
    "sweep states --out /proc/none": "out='/proc/none' cannot be written (No such file or "
    "directory); give a writable folder",
    "convert optimizer.pt states --to torch --overwrite": "out='states' cannot be written (Is a "
    "directory); give a writable file",
    "capture digits --steps 5 --every 10": "every=10 would record none of the 5 steps",
}
REFUSED = {
    "memory :": f"model=':' {EMPTY}",
    **UNWRITABLE,
}


@pytest.mark.parametrize("command", REFUSED)
def test_bad_arguments_are_refused_before_any_work(
    command: str, place: Path, capsys, monkeypatch
) -> None:
    def works(*_: object, **__: object) -> None:
        raise AssertionError("it works already")

    monkeypatch.chdir(place)
    monkeypatch.setattr(lab, "compare", works)
    monkeypatch.setattr(workloads, "train", works)
    monkeypatch.setattr(sweep, "run", works)
    monkeypatch.setattr("qmaps.capture.conversion.load_safely", works)
    code, out, err = call(shlex.split(command), capsys)
    assert (code, out, err) == (2, "", f"error: {REFUSED[command]}\n")


@pytest.mark.parametrize(
    "command",
    [
        *(f"{verb} {LONG}" for verb in ("figures", "sweep", "report", "maps", "memory", "train")),
        *(f"figures --out {LONG}", f"sweep states --out {LONG}", f"figures states --out {LONG}"),
        *(f"convert {LONG} o --to torch", f"convert optimizer.pt {LONG} --to torch"),
        f"capture --checkpoint {LONG}",
        *(f"sweep states --spec B{NINES}/DE@4s", f"sweep states --spec B8{'x8' * 3000}/DE@4s"),
        *(f"sweep states --step {NINES}", f"{LONG}{LONG}"),
        *(f"plot {LONG}", f"plot replay --run {LONG}", f"plot replay --run . --out {LONG}.png"),
        *(f"recommend {LONG}", f"recommend states --step-cost {NINES}"),
        *(f"maps DE@{NINES}", f"train digits --seeds {NINES}", f"lab digits --seed {NINES}"),
        *(f"sweep states --spec {'&'.join(['B8'] * 999)}/DE@4s", f"lab digits --seed {2**64}"),
    ],
    ids=lambda command: command[:40],
)
def test_long_arguments_get_one_short_line(command: str, place: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(place)
    code, out, err = call(shlex.split(command), capsys)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert len(err) < 610


JSON = [
    "maps --json",
    "maps DE@4s --json",
    "sweep states --spec B128/DE@4s --spec tensor/lloyd@2s --out swept --json",
    "figures states --out swept --json",
    "plot --json",
    "plot outliers --run swept --json",
    "report swept --json",
    "capture --checkpoint optimizer.pt --out again --json",
    "convert optimizer.pt converted.pt --to qmaps --json",
    "train digits --steps 1 --out trained --json",
    "capture digits --steps 1 --every 1 --out recorded --json",
    "memory 7B --json",
]


def test_json_is_strict_json(place: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr(figures, "save", blank)
    for command in JSON:
        code, out, _ = call(shlex.split(command), capsys)
        assert code == 0, command
        actual = strictly(out)
        if command.startswith("train"):
            assert actual[0]["std"] is None
    files = [file for file in place.rglob("*.json") if file.name != "nan.json"]
    written = {file.name for file in files}
    assert {"result.json", "run.json", "sweep.json"} <= written
    for file in files:
        strictly(file.read_text())
    # The same command finds its run again.
    assert call(shlex.split(JSON[7]), capsys)[0] == 0


@pytest.mark.parametrize("columns", ["0", "1", "-3", "many"])
def test_any_width_shows_tables_and_help(columns: str, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert "0.8875" in call(["maps", "DE@4s"], capsys)[1]
    assert "--json" in call(["maps", "--help"], capsys)[1]


def test_a_pipe_that_closes_early_ends_it_quietly() -> None:
    module = [sys.executable, "-m", "qmaps", "maps", "linear@16s", "--json"]
    environment = {**os.environ, "COLUMNS": "0"}
    with subprocess.Popen(
        module, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        assert command.stdout.read(10)
        command.stdout.close()
        assert command.stderr.read() == b""
        assert command.wait() == 1


def test_a_reader_that_is_slow_gets_all() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    module = [sys.executable, "-m", "qmaps", "maps", "linear@16s", "--json"]
    with subprocess.Popen(module, stdout=write, stderr=subprocess.PIPE) as command:
        os.close(write)
        text = b"".join(iter(lambda: os.read(read, 4096), b""))
        os.close(read)
        assert command.wait() == 0
    assert len(strictly(text.decode())["values"]) == 2**16
