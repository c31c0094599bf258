"""Checkpoint files: complete or absent, and never a program."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
from collections import OrderedDict
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from qmaps.errors import BadTypeError, BadValueError, OutputError
from qmaps.storage import checkpoint, files
from tests.outside import CALLS, NAME, Outside

pytestmark = pytest.mark.slow

KILLED = """
import io, os, signal, sys
from pathlib import Path
import torch
from qmaps.storage import checkpoint, files

path = Path(sys.argv[1])

class Killer(io.FileIO):
    '''A file whose process is killed in the middle of a write, or at its end.'''
    left = 0

    def write(self, data):
        data = bytes(data)
        if Killer.left == 0:
            super().write(data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        Killer.left -= 1
        return super().write(data)

def at_end(name, done):
    '''Before or after the call that makes the new file count.'''
    real = getattr(os, name) if name == "fsync" else Path.replace
    def killing(*args):
        if done:
            real(*args)
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "fsync":
        os.fsync = killing
    else:
        Path.replace = killing

def state(value):
    return {"step": value, "a": torch.full((1000,), float(value)), "b": [torch.ones(7) * value]}

def child(moment):
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    if isinstance(moment, int):
        Killer.left = moment
        Path.open = lambda self, mode: Killer(self, "w")
    else:
        at_end(*moment)
    checkpoint.save(state(2), path)
    os._exit(0)

torch.set_num_threads(1)
checkpoint.save(state(1), path)
outcomes = []
moments = [("fsync", False), ("fsync", True), ("replace", False)]
for moment in [*moments, *range(1000), ("replace", True)]:
    status = child(moment)
    found = checkpoint.load(path)
    assert torch.equal(found["a"], torch.full((1000,), float(found["step"])))
    assert torch.equal(found["b"][0], torch.ones(7) * found["step"])
    outcomes.append((os.WIFSIGNALED(status), found["step"]))
    if isinstance(moment, int) and not os.WIFSIGNALED(status):
        checkpoint.save(state(1), path)
        writes = moment
        break
assert writes > 5, writes
assert outcomes == [(True, 1)] * (len(outcomes) - 1) + [(False, 2)], outcomes
assert os.WIFSIGNALED(child(("replace", True)))
assert checkpoint.load(path)["step"] == 2
print("killed", len(outcomes))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_the_file_of_a_killed_writer_goes_with_the_next_save(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    dead, alive, on_another_host, unrelated = (
        tmp_path / f".{name}.tmp"
        for name in (
            f"a.pt.{ended.pid}-{files.HOST}", f"a.pt.{os.getppid()}-{files.HOST}",
            f"a.pt.{ended.pid}-00000000", f"b.pt.{ended.pid}-{files.HOST}",
        )
    )  # fmt: skip
    for path in (dead, alive, on_another_host, unrelated):
        path.touch()
    checkpoint.save({"a": 1}, tmp_path / "a.pt")
    assert {*tmp_path.iterdir()} == {tmp_path / "a.pt", alive, on_another_host, unrelated}


def test_a_kill_at_any_moment_of_a_save_loses_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "c.pt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("killed ")


def test_saved_values_are_loaded(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    for value in (1.0, 2.0):
        checkpoint.save({"x": torch.tensor([value]), "n": [value]}, path)
        for mmap in (False, True):
            loaded = checkpoint.load(path, mmap=mmap)
            assert loaded["x"].tolist() == loaded["n"] == [value]
    assert list(tmp_path.iterdir()) == [path]


NUMBERS = [np.float64(0.1), np.float32(0.1), np.float16(0.1), np.int64(-3), np.uint8(3), np.True_]


@pytest.mark.parametrize("add", [[], [np.dtype, np.dtypes.Float64DType]])
def test_numbers_of_numpy(add: list[type], tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    groups = [{"lr": number, "betas": (number, 0.9), "params": [0]} for number in NUMBERS]
    state = OrderedDict(param_groups=groups, state={np.int64(2): {"step": torch.ones(2)}})
    plain = [number.item() for number in NUMBERS]
    checkpoint.save(state, path)
    assert isinstance(groups[0]["lr"], np.float64)
    files = [path, tmp_path / "of_torch.pt"]
    torch.save(state, files[1])
    with torch.serialization.safe_globals(add):  # as other libraries add them for themselves
        before = {*torch.serialization.get_safe_globals()}
        for file in files:
            loaded = checkpoint.load(file)
            results = [group["lr"] for group in loaded["param_groups"]]
            assert (results, [*map(type, results)]) == (plain, [*map(type, plain)])
            assert [group["betas"][0] for group in loaded["param_groups"]] == plain
            assert [(key, type(key)) for key in loaded["state"]] == [(2, int)]
            assert loaded["state"][2]["step"].tolist() == [1, 1]
        assert {*torch.serialization.get_safe_globals()} == before


def test_unloadable_values_are_not_saved(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    checkpoint.save({"x": 1}, path)
    with pytest.raises(BadTypeError) as caught:
        checkpoint.save({"x": Fraction(1, 3)}, path)
    assert str(caught.value) == (
        "state must consist of tensors, numbers, strings, dicts and lists, got fractions.Fraction, "
        "which could not be loaded without running code"
    )
    assert checkpoint.load(path) == {"x": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_other_pickle_protocols_are_named(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    torch.save({"x": torch.ones(3)}, path, pickle_protocol=4)
    with pytest.raises(BadValueError) as caught:
        checkpoint.load(path)
    assert str(caught.value) == (
        f"{str(path)!r} was saved with pickle_protocol=4 or later, which torch.load does not read; "
        "save it without pickle_protocol"
    )


def test_a_file_that_would_run_code_runs_none(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    torch.save({"state": Outside()}, path)
    legacy = tmp_path / "legacy.pt"
    torch.save({"state": Outside()}, legacy, _use_new_zipfile_serialization=False)
    bare = tmp_path / "bare.pkl"
    bare.write_bytes(pickle.dumps(Outside()))
    for file, named in ((path, True), (legacy, True), (bare, False)):
        with pytest.raises(BadValueError) as caught:
            checkpoint.load(file)
        if named:
            assert str(caught.value) == (
                f"{str(file)!r} would have to run code to load ({NAME}); save the "
                "optimizer's state_dict() with plain tensors and numbers"
            )
        assert not CALLS


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    checkpoint.save({"x": torch.arange(100.0)}, path)
    data = path.read_bytes()
    for size in (1, len(data) // 3, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(BadValueError) as caught:
            checkpoint.load(path)
        assert str(caught.value) == (
            f"{str(path)!r} is not a checkpoint that torch can load; it is corrupt, "
            "truncated, or a file of another kind"
        )
    path.write_bytes(b"")
    for file, reason in (
        (path, "is empty"),
        (tmp_path / "none", "cannot be read (No such file or directory)"),
    ):
        with pytest.raises(BadValueError) as caught:
            checkpoint.load(file)
        assert str(caught.value) == f"{str(file)!r} {reason}"


def test_a_save_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    checkpoint.save({"x": 1}, path)
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        checkpoint.save({"x": lambda: 1}, path)
    assert checkpoint.load(path) == {"x": 1}
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(OutputError) as caught:
        checkpoint.save({"x": 2}, tmp_path / "none" / "c.pt")
    assert str(caught.value) == (
        f"{str(tmp_path / 'none' / 'c.pt')!r} cannot be written (No such file or directory)"
    )


FULL = """
import resource, sys
from pathlib import Path
import matplotlib
matplotlib.use("Agg")
import pandas as pd, torch
from matplotlib.figure import Figure
import qmaps
from qmaps import capture, figures
from qmaps.capture import conversion
from qmaps.errors import OutputError
from qmaps.storage import checkpoint, files

out = Path(sys.argv[1])
x = torch.randn(100, 100)
figure = Figure()
figure.subplots().imshow(x.numpy())
layer = torch.nn.Linear(100, 100)
optimizer = torch.optim.AdamW(layer.parameters())
layer(x).sum().backward()
optimizer.step()
torch.save(optimizer.state_dict(), out / "in.pt")
recorder = capture.StateRecorder(optimizer, out / "states", names=layer)
write = {
    "c.pt": lambda path: checkpoint.save({"x": x}, path),
    "c2.pt": lambda path: checkpoint.save({"x": torch.zeros(2**20)}, path),
    "converted.pt": lambda path: conversion.convert_file(
        out / "in.pt", path, to="qmaps", overwrite=True
    ),
    "t.safetensors": lambda path: qmaps.save(
        {"x": qmaps.quantizer("B128/DE@8s").quantize(x)}, path
    ),
    "states/step-00000001.safetensors": lambda _: recorder.record(),
    "r.json": lambda path: files.write_record(path, {"a": [1] * 5000}),
    "t.txt": lambda path: files.write_text(path, "x" * 10000),
    "f.parquet": lambda path: files.write_frame(path, pd.DataFrame({"a": x.reshape(-1).numpy()})),
    "f.png": lambda path: figures.save(figure, path),
    "f.svg": lambda path: figures.save(figure, path),
}

def content():
    return {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}

for name, job in write.items():
    job(out / name)
before = content()
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
for name, job in write.items():
    try:
        job(out / name)
    except OutputError as error:
        reason = "File too large"
        if name == "t.safetensors":
            reason = f"Error while serializing: I/O error: {reason} (os error 27)"
        assert str(error) == f"{str(out / name)!r} cannot be written ({reason})", error
    else:
        raise AssertionError(name)
assert content() == before
print("refused", len(write))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on the size of files")
def test_a_full_disk_is_one_error_and_the_old_file(tmp_path: Path) -> None:
    """A limit on the size of files acts like a full disk."""
    command = [sys.executable, "-c", FULL, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "refused 10\n"


def test_an_interrupted_save_raises_keyboard_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside ``torch.save`` it would become a RuntimeError about positions in the file."""
    real = Path.open

    class Interrupted(io.FileIO):
        def write(self, data: object) -> int:
            raise KeyboardInterrupt

    def opened(self: Path, mode: str) -> object:
        return Interrupted(self, "w") if self.name.endswith(".tmp") else real(self, mode)

    monkeypatch.setattr(Path, "open", opened)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save({"x": torch.ones(3)}, tmp_path / "c.pt")
    assert list(tmp_path.iterdir()) == []
