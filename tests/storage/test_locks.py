"""One writer to a folder at a time, and cleanup of abandoned locks."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import filelock
import pytest
import torch
from filelock import FileLock

from qmaps import capture, lab, sweep
from qmaps.capture.recorder import write
from qmaps.errors import OutputError
from qmaps.lab import workloads
from qmaps.storage import locks
from qmaps.storage.locks import FolderLock

HOLD = """
import sys
from qmaps.storage.locks import FolderLock
lock = FolderLock(sys.argv[1], "capture")
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "PATIENCE", 0.05)


def holder(folder: Path, **environment: str) -> subprocess.Popen[str]:
    """Another process with the lock; it releases the lock at a line of input."""
    command, env = [sys.executable, "-c", HOLD, str(folder)], {**os.environ, **environment}
    process = subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, text=True, env=env)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def adamw(model: torch.nn.Module, _: workloads.Workload) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters())


HELD = (
    "out={!r} is being written; close that recorder, wait until that process has ended, or give "
    "another folder"
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def refusal(folder: Path) -> str:
    with pytest.raises(OutputError) as caught:
        FolderLock(folder, "capture")
    return str(caught.value)


@pytest.mark.slow
def test_another_process_is_waited_for_and_then_gone(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        assert refusal(tmp_path) == HELD.format(str(tmp_path))
        process.communicate("\n")
    assert names(tmp_path) == []
    with FolderLock(tmp_path, "capture") as lock:
        assert lock.exclusive
    assert names(tmp_path) == []


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="there is no kill -9")
def test_the_lock_of_a_killed_process_does_not_block(tmp_path: Path) -> None:
    with holder(tmp_path, TZ="XXX-25:99") as process:  # a time zone that does not exist
        process.kill()
        assert process.communicate()[1] == ""
    assert names(tmp_path) == [".capture.lock"]
    with FolderLock(tmp_path, "capture") as lock:
        assert lock.exclusive
    assert names(tmp_path) == []


def test_two_in_one_process(tmp_path: Path) -> None:
    first = FolderLock(tmp_path, "capture")
    assert refusal(tmp_path) == HELD.format(str(tmp_path))
    FolderLock(tmp_path, "run").release()  # of another kind
    first.release()
    first.release()
    FolderLock(tmp_path, "capture").release()
    assert names(tmp_path) == []


def test_a_lock_that_no_one_can_reach_is_released(tmp_path: Path) -> None:
    forgotten: list[object] = [FolderLock(tmp_path, "capture")]
    forgotten.append(forgotten)  # as a recorder and its optimizer hold each other
    gc.disable()
    try:
        del forgotten
        FolderLock(tmp_path, "capture").release()
    finally:
        gc.enable()


def test_another_thread_may_release(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path, "capture")
    thread = threading.Thread(target=lock.release)
    thread.start()
    thread.join()
    FolderLock(tmp_path, "capture").release()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_no_part_in_it(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path, "capture")
    child = os.fork()
    if not child:
        inherited = lock.inherited
        lock.release()
        os._exit(0 if inherited else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not lock.inherited
    assert refusal(tmp_path)
    lock.release()
    assert names(tmp_path) == []


def test_a_folder_that_was_deleted_meanwhile(tmp_path: Path) -> None:
    out = tmp_path / "out"
    old = FolderLock(out, "capture")
    shutil.rmtree(out)
    new = FolderLock(out, "capture")
    old.release()
    assert refusal(out)
    new.release()


@pytest.mark.slow
def test_long_writers_take_the_lock(tmp_path: Path) -> None:
    layer = torch.nn.Linear(3, 3)
    layer(torch.ones(1, 3)).sum().backward()
    optimizer = torch.optim.AdamW(layer.parameters())
    optimizer.step()
    file = tmp_path / "o.pt"
    torch.save(optimizer.state_dict(), file)
    states = capture.load(file)
    digits = workloads.get("digits")
    calls: dict[str, Callable[[Path], object]] = {
        "capture": lambda out: write(states, out),
        "sweep": lambda out: sweep.run(states, ["B8/DE@4s"], out=out, min_quantized_size=0),
        "frames": lambda out: lab.analyze_states(states, out.parent, min_quantized_size=0),
        "run": lambda out: workloads.train(digits, adamw, out=out, steps=1),
        "lab": lambda out: lab.run(digits, out, steps=1),
    }
    for kind, call in calls.items():
        out = tmp_path / kind
        with FolderLock(out, kind), pytest.raises(OutputError) as caught:
            call(out)
        assert str(caught.value).startswith(f"out={str(out)!r} is being written; ")
        assert names(out) == []


def test_file_systems_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failure: list[Exception] = []

    def fail(*args: object, **options: object) -> None:
        raise failure[-1]

    monkeypatch.setattr(FileLock, "acquire", fail)
    for error in (NotImplementedError(), OSError(errno.ENOLCK, "No locks available")):
        failure.append(error)
        with FolderLock(tmp_path, "capture") as lock:
            assert not lock.exclusive
    failure.append(OSError(errno.EACCES, "Permission denied"))
    with pytest.raises(OutputError) as caught:
        FolderLock(tmp_path, "capture")
    assert str(caught.value) == (
        f"out={str(tmp_path)!r} cannot be locked (Permission denied); give another folder"
    )
    assert names(tmp_path) == []
    assert issubclass(filelock.Timeout, OSError)  # and is told from these
