"""`qmaps doctor` and `qmaps --version`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import qmaps
from qmaps.engines.native import build
from qmaps.optim import doctor
from qmaps.optim.doctor import NOTE, PROBLEM, Finding


@pytest.fixture(autouse=True)
def nothing_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "findings", lambda *_: [Finding(NOTE, "A note.", "Nothing.")])


def test_the_version(call) -> None:
    assert call("--version") == (0, f"qmaps {qmaps.__version__}\n", "")


def test_a_report(call) -> None:
    code, out, err = call("doctor --seconds 0")
    assert (code, err) == (0, "")
    assert out.startswith(f"qmaps {qmaps.__version__}: no problems found\n\nnote: A note.\n")
    assert max(map(len, out.splitlines())) <= 80


def test_json(call) -> None:
    code, out, _ = call("doctor --seconds 0 --json")
    assert code == 0
    loaded = json.loads(out)
    assert loaded["steps"][0] == {
        "states": "32 bits", "bits_per_state_element": 32.0, "state_bytes_per_parameter": 8.0,
        "ns_per_parameter": None,
    }  # fmt: skip
    (note,) = loaded["findings"]
    assert note == {"level": "note", "message": "A note.", "repair": "Nothing.", "command": ""}
    assert set(loaded) == {"versions", "backends", "processor", "steps", "findings"}


def test_the_exit_code_shows_a_problem(call, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Finding(PROBLEM, "The native engine is missing.", "Run:", build.command())
    monkeypatch.setattr(doctor, "findings", lambda *_: [problem])
    code, out, _ = call("doctor --seconds 0")
    assert code == 1
    assert f"problem: The native engine is missing.\n  Run:\n    {build.command()}\n" in out


@pytest.mark.slow
def test_a_wrong_instruction_set_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import qmaps; qmaps.backend()"],
        env={**os.environ, "QMAPS_ISA": "avx9"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.splitlines()[-1].startswith(
        "qmaps.errors.BackendError: QMAPS_ISA='avx9' is not available on this processor; allowed "
    )
