from __future__ import annotations

import json

import pytest

from qmaps.errors import OutputError, nearest
from qmaps.files import output_folder, replacing, write_json


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
