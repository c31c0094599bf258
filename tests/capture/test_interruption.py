"""Interruptions and resuming: a folder always holds complete snapshots of one training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from qmaps import capture
from qmaps.capture import StateRecorder, snapshot
from qmaps.errors import CaptureError, OutputError
from qmaps.storage import locks

pytestmark = pytest.mark.slow

OTHER = "other parameters ('bias' is only there); give another folder for this choice of parameters"

LOOP = """
import sys, torch
from qmaps.capture import StateRecorder
layer = torch.nn.Linear(300, 300)
optimizer = torch.optim.AdamW(layer.parameters())
StateRecorder(optimizer, sys.argv[1], names=layer)
while True:
    for parameter in layer.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
"""


def train(
    layer: nn.Module, optimizer: torch.optim.Optimizer, steps: int, out: Path, **options: object
) -> None:
    with StateRecorder(optimizer, out, names=layer, **options):
        for _ in range(steps):
            optimizer.zero_grad()
            layer(torch.ones(1, 3)).square().sum().backward()
            optimizer.step()


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 3)


@pytest.mark.skipif(os.name == "nt", reason="there is no kill -9")
def test_killed_while_recording_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the kill no other process can record there."""
    monkeypatch.setattr(locks, "PATIENCE", 0.05)
    layer = linear()
    optimizer = torch.optim.AdamW(layer.parameters())
    for _ in range(2):  # the second time on the first one's files
        with subprocess.Popen([sys.executable, "-c", LOOP, str(tmp_path)]) as process:
            try:
                wait_for_snapshots(process, tmp_path)
                for _ in range(3):
                    with pytest.raises(OutputError) as caught:
                        StateRecorder(optimizer, tmp_path, names=layer)
                    assert str(caught.value).startswith(f"out={str(tmp_path)!r} is being written; ")
                    for number in capture.load(tmp_path).steps[-3:]:
                        list(capture.load(tmp_path, step=number).items())
                assert process.poll() is None
            finally:
                process.send_signal(signal.SIGKILL)
        steps = capture.load(tmp_path).steps
        assert len(steps) >= 8
        for number in steps:
            states = capture.load(tmp_path, step=number)
            assert states.step == number
            list(states.items())
            assert [states.scalars(name) for name in states.parameters()] == [{"step": number}] * 2


def wait_for_snapshots(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait until the process has written eight, over earlier ones or beside them."""
    before = set(folder.glob("step-*"))
    deadline = time.monotonic() + 60
    while len(set(folder.glob("step-*"))) < len(before) + 8:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.002)
        before &= set(folder.glob("step-*"))
        if len(before) >= 8:  # a fresh optimizer takes the same steps again
            newest = max(before).stat().st_mtime_ns
            while max(before).stat().st_mtime_ns == newest:
                assert time.monotonic() < deadline
                time.sleep(0.002)
            return


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_interrupted_in_the_middle_of_a_write(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = linear()
    optimizer = torch.optim.AdamW(layer.parameters())
    train(layer, optimizer, 1, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    reached = []

    def broken(*_: object) -> None:
        reached.extend(path.stat().st_size for path in tmp_path.glob(".step-00000002*"))
        raise error

    monkeypatch.setattr(snapshot.os, "fsync", broken)
    expected = OutputError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as caught:
        train(layer, optimizer, 1, tmp_path)
    if expected is OutputError:
        path = str(tmp_path / "step-00000002.safetensors")
        assert str(caught.value) == f"{path!r} cannot be written (No space left on device)"
    assert len(reached) == 1
    assert reached[0] > 2 * 12 * 4  # the tensors had been written, under another name
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_recorder_holds_its_folder_until_it_is_closed(tmp_path: Path) -> None:
    layer = linear()
    optimizer = torch.optim.AdamW(layer.parameters())
    recorder = StateRecorder(optimizer, tmp_path, names=layer)
    assert sorted(path.name[0] for path in tmp_path.iterdir()) == ["."]
    with pytest.raises(OutputError, match="is being written; close that recorder"):
        StateRecorder(optimizer, tmp_path, names=layer)
    recorder.close()
    assert list(tmp_path.iterdir()) == []
    # A refused recorder, and one deleted with its optimizer, hold no lock.
    second = torch.optim.SGD(layer.parameters(), momentum=0.9)
    train(layer, optimizer, 1, tmp_path)
    with pytest.raises(OutputError, match="give another folder for"):
        StateRecorder(second, tmp_path, names=layer)
    StateRecorder(torch.optim.AdamW(layer.parameters()), tmp_path, names=layer)
    train(layer, optimizer, 1, tmp_path)
    assert capture.load(tmp_path).steps == [1, 2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_records_nothing(tmp_path: Path) -> None:
    layer = linear()
    optimizer = torch.optim.AdamW(layer.parameters())
    with StateRecorder(optimizer, tmp_path, names=layer) as recorder:
        for parameter in layer.parameters():
            parameter.grad = torch.ones_like(parameter)
        child = os.fork()
        if not child:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                optimizer.step()
                optimizer.step()
            expected = (
                f"this process was forked from the one that records in {str(tmp_path)!r}; nothing "
                "is recorded here"
            )
            recorder.close()
            os._exit(0 if [str(w.message) for w in caught] == [expected] else 1)
        assert os.waitpid(child, 0)[1] == 0
        optimizer.step()
    assert capture.load(tmp_path).steps == [1]


def test_without_locks_leftovers_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may be writing them."""

    def unsupported(*_: object, **options: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr("filelock.FileLock.acquire", unsupported)
    layer = linear()
    optimizer = torch.optim.AdamW(layer.parameters())
    (tmp_path / ".step-00000003.safetensors.4711.tmp").write_bytes(b"half")
    train(layer, optimizer, 1, tmp_path)
    assert (tmp_path / ".step-00000003.safetensors.4711.tmp").exists()
    assert capture.load(tmp_path).steps == [1]


def test_leftovers_are_ignored_and_then_removed(tmp_path: Path) -> None:
    layer = linear()
    optimizer = torch.optim.AdamW(layer.parameters())
    train(layer, optimizer, 2, tmp_path)
    leftovers = [".step-00000003.safetensors.4711.tmp", ".gradients-00000003.4711.tmp"]
    for name in leftovers:
        (tmp_path / name).write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    assert capture.load(tmp_path).steps == [1, 2]
    StateRecorder(optimizer, tmp_path, names=layer).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "notes.txt",
        "step-00000001.safetensors",
        "step-00000002.safetensors",
    ]


@pytest.mark.parametrize(
    ("name", "options"), [("AdamW", {}), ("SGD", {"momentum": 0.9}), ("Adafactor", {})]
)
def test_resumed_training_gives_the_same_files(
    name: str, options: dict[str, float], tmp_path: Path
) -> None:
    def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
        layer = linear()
        return layer, getattr(torch.optim, name)(layer.parameters(), **options)

    layer, optimizer = fresh()
    train(layer, optimizer, 6, tmp_path / "whole", every=2)

    layer, optimizer = fresh()
    train(layer, optimizer, 4, tmp_path / "parts", every=2)
    saved = layer.state_dict(), optimizer.state_dict()
    layer, optimizer = fresh()
    layer.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    train(layer, optimizer, 2, tmp_path / "parts", every=2)
    assert capture.load(tmp_path / "parts").steps == [2, 4, 6]
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "parts" / path.name).read_bytes() == path.read_bytes(), path.name

    # Once more from the beginning: the same steps, the same bytes.
    layer, optimizer = fresh()
    train(layer, optimizer, 6, tmp_path / "whole", every=2)
    for path in (tmp_path / "parts").iterdir():
        assert (tmp_path / "whole" / path.name).read_bytes() == path.read_bytes(), path.name


def test_start_numbers_an_optimizer_that_does_not_count(tmp_path: Path) -> None:
    layer = linear()
    optimizer = torch.optim.SGD(layer.parameters(), momentum=0.9)
    train(layer, optimizer, 2, tmp_path, start=40)
    assert capture.load(tmp_path).steps == [41, 42]


def test_a_folder_of_another_training(tmp_path: Path) -> None:
    layer = linear()
    optimizer = torch.optim.AdamW(layer.parameters())
    train(layer, optimizer, 1, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    wide = nn.Linear(4, 3)
    only = nn.Linear(3, 3, bias=False)
    cases = [
        (torch.optim.SGD(layer.parameters()), layer, "AdamW; give another folder for SGD"),
        (
            torch.optim.AdamW(wide.parameters()),
            wide,
            ("'weight' of shape (3, 3); give another folder for shape (3, 4)"),
        ),
        (
            torch.optim.AdamW(only.parameters()),
            only,
            OTHER,
        ),
        (optimizer, None, OTHER),
    ]
    for changed, names, what in cases:
        with pytest.raises(OutputError) as error:
            StateRecorder(changed, tmp_path, names=names)
        assert str(error.value) == (f"out={str(tmp_path)!r} holds states of {what}")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_whose_newest_snapshot_is_damaged(tmp_path: Path) -> None:
    layer = linear()
    optimizer = torch.optim.AdamW(layer.parameters())
    path = tmp_path / "step-00000009.safetensors"
    path.write_bytes(b"")
    with pytest.raises(OutputError) as error:
        StateRecorder(optimizer, tmp_path, names=layer)
    assert str(error.value) == (
        f"out={str(tmp_path)!r} holds a snapshot that cannot be read: {str(path)!r} is empty; "
        "delete it or give another folder"
    )
    with pytest.raises(CaptureError):
        capture.load(tmp_path)
