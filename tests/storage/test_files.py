from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import qmaps
from qmaps import capture, errors
from qmaps.errors import OutputError, QmapsError, nearest
from qmaps.optim import AdamW8bit
from qmaps.optim.choice_file import load_choice
from qmaps.storage import checkpoint, files
from qmaps.storage.files import (
    output_file,
    output_folder,
    read_frame,
    read_record,
    replacing,
    write_frame,
    write_json,
    write_record,
    write_text,
)


def test_replacing_leaves_the_old_file_when_the_block_fails(tmp_path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"x": 1})

    def interrupted() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        interrupted()
    assert json.loads(path.read_text()) == {"x": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_folder_that_cannot_be_written(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError) as caught:
        output_folder(tmp_path / "file" / "sub")
    assert str(caught.value) == (
        f"out={str(tmp_path / 'file' / 'sub')!r} cannot be written (Not a directory); "
        "give a writable folder"
    )
    with pytest.raises(OutputError), replacing(tmp_path / "file" / "x") as temporary:
        temporary.write_text("")


def test_nearest_match() -> None:
    assert nearest("linaer", ["linear", "DE"]) == "; nearest match: linear"
    assert nearest("zzz", ["linear", "DE"]) == ""


def test_a_folder_is_created_and_left_empty(tmp_path: Path) -> None:
    folder = output_folder(tmp_path / "a" / "b", parameter="runs")
    assert folder == tmp_path / "a" / "b"
    assert list(folder.iterdir()) == []
    assert output_folder(str(folder)) == folder


@pytest.mark.parametrize("place", ["/proc/qmaps", "/dev/null/x"])
def test_places_that_no_one_can_write(place: str) -> None:
    with pytest.raises(OutputError) as caught:
        output_folder(place, parameter="runs")
    assert str(caught.value).startswith(f"runs={place!r} cannot be written (")
    assert str(caught.value).endswith("); give a writable folder")
    with pytest.raises(OutputError) as caught:
        write_json(f"{place}/a.json", {})
    assert str(caught.value).startswith(f"'{place}/a.json' cannot be written (")


def test_replacing_a_folder_fails_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder" / "full").mkdir(parents=True)
    with pytest.raises(OutputError) as caught:
        write_json(tmp_path / "folder", {})
    assert str(caught.value) == f"{str(tmp_path / 'folder')!r} cannot be written (Is a directory)"
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_readers_see_the_old_file_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, 1)
    with replacing(path) as temporary:
        temporary.write_text("2\n")
        assert temporary.parent == path.parent
        assert path.read_text() == "1\n"
    assert path.read_text() == "2\n"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_json_that_cannot_be_written_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"b": 1, "a": [2]})
    text = path.read_text()
    assert text == '{\n  "a": [\n    2\n  ],\n  "b": 1\n}\n'
    with pytest.raises(TypeError):
        write_json(path, {"x": object()})
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("name", "allowed", "hint"),
    [
        ("LINEAR", ["linear", "DE"], "; nearest match: linear"),
        ("de_0", ["DE", "DE-0", "tree"], "; nearest match: DE-0"),
        ("tre", ["static-tree", "tree"], "; nearest match: tree"),
        ("", ["DE"], ""),
        ("DE", [], ""),
    ],
)
def test_hints(name: str, allowed: list[str], hint: str) -> None:
    assert nearest(name, allowed) == hint
    assert nearest(name, iter(allowed)) == hint


@pytest.mark.parametrize("error", [e for e in vars(errors).values() if isinstance(e, type)])
def test_errors_are_values_or_types(error: type) -> None:
    # The end of another process is not an error of input.
    base = errors.QmapsError, errors.CommunicationError
    if issubclass(error, errors.QmapsError) and error not in base:
        assert issubclass(error, (ValueError, TypeError))


def quantized() -> Any:
    return qmaps.quantizer("B64/DE@8s").quantize(torch.ones(64))


WRITERS: dict[str, Callable[[Path], object]] = {
    "json": lambda path: write_json(path, {"a": 1}),
    "text": lambda path: write_text(path, "a"),
    "record": lambda path: write_record(path, {"a": 1}),
    "frame": lambda path: write_frame(path, pd.DataFrame({"a": [1]})),
    "checkpoint": lambda path: checkpoint.save({"a": 1}, path),
    "tensors": lambda path: qmaps.save({"a": quantized()}, path),
}
needs_fifo = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
needs_locks = pytest.mark.skipif(files.fcntl is None, reason="needs locks of files")


@pytest.mark.parametrize("writer", WRITERS)
def test_a_link_stays_and_its_target_is_written(writer: str, tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    link, target = tmp_path / "last", tmp_path / "large/last"
    link.symlink_to("large/last")
    for content in (None, b"old"):
        if content is not None:
            target.write_bytes(content)
        WRITERS[writer](link)
        assert link.is_symlink()
        assert not target.is_symlink()
        assert target.read_bytes() not in (b"", b"old")
    assert {*tmp_path.rglob("*")} == {link, tmp_path / "large", target}


def test_links_that_lead_nowhere_are_errors(tmp_path: Path) -> None:
    link, circle = tmp_path / "link", tmp_path / "circle"
    link.symlink_to("missing/file")
    circle.symlink_to("circle")
    for path, reason in (
        (link, "No such file or directory"), (circle, "Too many levels of symbolic links")
    ):  # fmt: skip
        with pytest.raises(OutputError) as caught:
            write_json(path, 1)
        assert str(caught.value) == f"{str(path)!r} cannot be written ({reason})"
        assert path.is_symlink()


@needs_fifo
@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("writer", WRITERS)
def test_a_pipe_is_not_replaced(writer: str, linked: bool, tmp_path: Path) -> None:
    pipe = path = tmp_path / "pipe"
    os.mkfifo(pipe)
    if linked:
        path = tmp_path / "link"
        path.symlink_to("pipe")
    before = {*tmp_path.iterdir()}
    with pytest.raises(OutputError) as caught:
        WRITERS[writer](path)
    assert str(caught.value) == f"{str(path)!r} cannot be written (it is not a regular file)"
    assert pipe.is_fifo()
    assert {*tmp_path.iterdir()} == before


@needs_fifo
def test_outputs_are_checked_before_the_work(tmp_path: Path) -> None:
    pipe, link = tmp_path / "monitor.csv", tmp_path / "link.csv"
    os.mkfifo(pipe)
    message = (
        f"out={str(pipe)!r} cannot be written (it is not a regular file); give a writable file"
    )
    with pytest.raises(OutputError) as caught:
        output_file(pipe)
    assert str(caught.value) == message
    with pytest.raises(OutputError) as caught:
        capture.Monitor(AdamW8bit([torch.nn.Parameter(torch.zeros(8192))]), pipe)
    assert str(caught.value) == message
    link.symlink_to("missing.csv")
    assert output_file(link) == link
    assert {*tmp_path.iterdir()} == {pipe, link}


@contextlib.contextmanager
def pipe(path: Path) -> Iterator[None]:
    """A named pipe without a reader.

    A reader would wait for a writer forever; this one opens the pipe and closes it after a while.
    """
    os.mkfifo(path)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, os.open(path, os.O_RDWR | os.O_NONBLOCK))
        writer = threading.Timer(20, stack.close)
        writer.start()
        stack.callback(writer.cancel)
        yield


@needs_fifo
@pytest.mark.parametrize(
    ("read", "message"),
    [
        (checkpoint.load, "{path!r} cannot be read (it is not a regular file)"),
        (checkpoint.verify, "{path!r} cannot be read (it is not a regular file)"),
        (qmaps.load, "{path!r} cannot be read (it is not a regular file)"),
        (capture.load, "{path!r} is neither a file nor a folder"),
        (capture.snapshot.header_of, "{path!r} cannot be read (it is not a regular file)"),
        (read_record, "{path!r} is missing or damaged; delete it, and it will be made again"),
        (read_frame, "{path!r} is missing or damaged; delete it, and it will be made again"),
        (load_choice, "{path!r}: it cannot be read (it is not a regular file)"),
    ],
)  # fmt: skip
def test_a_pipe_is_not_read(read: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "pipe.json"
    with pipe(path), pytest.raises(QmapsError) as caught:
        read(path)
    assert str(caught.value) == message.format(path=str(path))


@needs_fifo
@pytest.mark.parametrize("name", ["optimizer.pt", "step-00000001.safetensors"])
def test_a_pipe_in_a_folder_is_not_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with pipe(path), pytest.raises(QmapsError) as caught:
        capture.load(tmp_path)
    assert str(caught.value) == f"{str(path)!r} cannot be read (it is not a regular file)"


KILLED = """
import os, sys
from qmaps.storage import files
with files.replacing(sys.argv[1]) as temporary:
    temporary.write_bytes(b"half")
    print(temporary, flush=True)
    {end}
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Name of the temporary file left by a killed writer of ``a``."""
    folder = tmp_path_factory.mktemp("killed")
    code = KILLED.format(end="os.kill(os.getpid(), 9)")
    command = [sys.executable, "-c", code, str(folder / "a")]
    subprocess.run(command, capture_output=True, timeout=120, check=False)
    (leftover,) = folder.iterdir()
    assert leftover.read_bytes() == b"half"
    return leftover.name


@needs_locks
@pytest.mark.parametrize("writer", WRITERS)
def test_files_of_killed_writers_go_with_the_next_save(
    writer: str, killed: str, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    (tmp_path / killed).write_bytes(b"half")
    # A container that starts again gives the same numbers to its processes.
    (tmp_path / f".a.{os.getpid()}-{files.HOST}-7.tmp").touch()
    WRITERS[writer](path)
    assert [*tmp_path.iterdir()] == [path]


@needs_locks
def test_files_that_are_being_written_stay(killed: str, tmp_path: Path) -> None:
    """A process of another container may have the same number: the lock decides."""
    path = tmp_path / "a"
    code = KILLED.format(end="sys.stdin.read()")
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        theirs = Path(process.stdout.readline().strip())
        elsewhere = tmp_path / killed
        os.link(theirs, elsewhere)  # the same file, so it is locked, under the number of a dead one
        write_json(path, 1)
        assert theirs.exists()
        assert elsewhere.exists()
        process.communicate()
    assert process.returncode == 0
    assert path.read_bytes() == b"half"
    write_json(path, 1)
    assert [*tmp_path.iterdir()] == [path]


def test_a_file_of_another_process_under_the_temporary_name_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its rename the temporary name is free; processes in containers have equal ids."""
    rename, names = Path.replace, []

    def replace(path: Path, target: Path) -> Path:
        renamed = rename(path, target)
        names.append(path)
        path.write_text("another's")
        return renamed

    monkeypatch.setattr(Path, "replace", replace)
    with replacing(tmp_path / "a.txt") as path:
        path.write_text("ours")
    assert [name.read_text() for name in names] == ["another's"]
    assert (tmp_path / "a.txt").read_text() == "ours"


def test_threads_that_write_one_file_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with replacing(path) as outer:
        outer.write_text("outer")
        write_text(path, "inner")
        assert outer.read_text() == "outer"
        assert path.read_text() == "inner"
    assert path.read_text() == "outer"
    assert [*tmp_path.iterdir()] == [path]
