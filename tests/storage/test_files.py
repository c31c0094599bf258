from __future__ import annotations

import json
from pathlib import Path

import pytest

from qmaps import errors
from qmaps.errors import OutputError, nearest
from qmaps.storage.files import (
    output_folder,
    replacing,
    write_json,
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
    # Another process that ends is nobody's bad input.
    base = errors.QmapsError, errors.CommunicationError
    if issubclass(error, errors.QmapsError) and error not in base:
        assert issubclass(error, (ValueError, TypeError))
