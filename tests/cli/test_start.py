"""Commands without tensors start without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qmaps import optim
from qmaps.cli import COMMANDS, catalogue, output
from qmaps.cli.memory import measured
from qmaps.cli.sizes import COLUMNS
from qmaps.storage.files import write_frame
from tests.figures.synthetic import FRAMES

PROGRAM = """
import contextlib, io, json, sys
from qmaps.cli import main

importing = []
for arguments in json.loads(sys.argv[1]):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main(arguments)
    if "torch" in sys.modules or not printed.getvalue():
        importing.append(arguments)
print(json.dumps(importing))
"""
FORMS = [
    *(["--version"], ["--help"], ["memory", "7B"], ["maps"], ["maps", "--json"]),
    ["memory", "1.5M", "--optimizer", "Muon", "--dtype", "float32", "--json"],
    *([command.__name__, "--help"] for command in COMMANDS),
]


def importing(forms: list[list[str]]) -> list[list[str]]:
    """Commands that import torch or print nothing; the process runs the rest after the first."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(forms)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_no_torch_for_help_and_facts() -> None:
    assert importing(FORMS) == []


def test_no_torch_for_pictures_and_pages_of_rows(tmp_path: Path) -> None:
    FRAMES["monitor"].to_csv(tmp_path / "monitor.csv", index=False)
    (tmp_path / "run" / "frames").mkdir(parents=True)
    write_frame(tmp_path / "run" / "frames" / "loss_curves.parquet", FRAMES["loss_curves"])
    run = str(tmp_path / "run")
    forms = [
        ["plot", "--list"],
        ["plot", str(tmp_path / "monitor.csv"), "--out", str(tmp_path / "m.png")],
        ["figures", "--out", run],
        ["report", run],
    ]
    assert importing(forms) == []
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.slow
def test_qmaps_is_imported_without_torch_and_has_all_its_names() -> None:
    program = (
        "import sys, qmaps\n"
        "assert not {'torch', 'numpy', 'pandas'} & sys.modules.keys()\n"
        "from qmaps import maps, quantizer\n"
        "assert [name for name in qmaps.__all__ if getattr(qmaps, name, None) is None] == []\n"
        "assert vars(qmaps)['quantizer'] is quantizer\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


SIZES = (2 * COLUMNS, 2 * COLUMNS + 1, 1_500_000, 7 * 10**9, 70 * 10**9 + 17)


@pytest.mark.parametrize("optimizer", ["AdamW", "Lion", "Muon", "Adafactor"])
def test_the_catalogue_has_the_bytes_of_the_optimizers(optimizer: str) -> None:
    form = json.loads(catalogue.FILE.read_text())["states"][optimizer]
    for numel in SIZES:
        model = measured(str(numel), optimizer)
        assert catalogue.states_of(*divmod(numel, COLUMNS), form) == (model.states, model.in_adamw)


def test_both_ways_print_the_same(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = ("maps", "maps --json", "memory 7B", "memory 9K --optimizer Muon --json")
    imported = [call(command) for command in commands]
    facts = json.loads(catalogue.FILE.read_text())
    assert list(facts["states"]["AdamW"]["presets"]) == list(optim.PRESETS)
    monkeypatch.setattr(catalogue, "facts", lambda: facts)
    assert [call(command) for command in commands] == imported


def test_files_that_were_added_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    assert catalogue.facts() is not None
    monkeypatch.setattr(catalogue, "modules", lambda: {"maps": ["cubic"], "normalize": []})
    assert catalogue.facts() is None
    monkeypatch.undo()
    assert catalogue.facts() is None  # torch is imported


def test_a_terminal_reads_why_it_waits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    output.announce()
    assert capsys.readouterr().err == ""  # it is no terminal
    monkeypatch.setattr(output.errors, "_force_terminal", True)
    output.announce()
    assert "importing torch ..." in capsys.readouterr().err
