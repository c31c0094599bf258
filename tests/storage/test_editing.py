"""Tensors and numbers of files change in place; all other bytes stay."""

import pickle
import re
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

from qmaps.errors import BadValueError
from qmaps.storage import checkpoint, checksums
from qmaps.storage.checkpoint import Part, editing, put, renumber


def saved(path: Path) -> dict[str, Any]:
    """A file with a view of a tensor, and a tensor in several chunks."""
    tensor = torch.arange(12.0)
    value = {
        "part": tensor[2:6],
        "whole": tensor,
        "large": torch.zeros(300_000),
        "kept": torch.full((7,), 0.25),
    }
    torch.save(value, path)
    return value


def records(path: Path) -> dict[str, bytes]:
    """The content of each record, with any checksum."""
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            entry.CRC = None  # type: ignore[assignment]
        return {entry.filename: archive.read(entry) for entry in archive.infolist()}


def check(path: Path) -> None:
    """Both places of every record's checksum are right."""
    content = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        for record in archive.infolist():
            crc = zlib.crc32(archive.read(record))
            assert crc == record.CRC
            start = record.header_offset
            crc_of_record, name, extra = struct.unpack_from("<14xI8xHH", content, start)
            if record.flag_bits & 8:
                behind = start + 30 + name + extra + record.file_size
                assert content[behind : behind + 4] == b"PK\x07\x08"
                (crc_of_record,) = struct.unpack_from("<I", content, behind + 4)
            assert crc_of_record == crc


@pytest.mark.parametrize("crc", [True, False])
def test_tensors_are_changed_in_their_file(tmp_path: Path, *, crc: bool) -> None:
    path = tmp_path / "file.pt"
    torch.serialization.set_crc32_options(crc)
    try:
        saved(path)
    finally:
        torch.serialization.set_crc32_options(True)
    before = records(path)
    with editing([path]):
        loaded = checkpoint.load(path, mmap=True)
        loaded["part"].copy_(torch.tensor([7.0, 8.0, 9.0, 10.0]))
        loaded["large"][-1] = 3.0
    check(path)
    again = checkpoint.load(path)
    assert again["whole"].tolist() == [0, 1, 7, 8, 9, 10, 6, 7, 8, 9, 10, 11]
    assert again["large"][-2:].tolist() == [0, 3]
    assert again["kept"].tolist() == [0.25] * 7
    after = records(path)
    assert list(after) == list(before)
    changed = [name.rpartition("file/")[2] for name in after if after[name] != before[name]]
    assert changed == ["data/0", "data/1"]


def test_other_files_are_not_changed(tmp_path: Path) -> None:
    for name in ("one.pt", "two.pt"):
        saved(tmp_path / name)
    before = (tmp_path / "two.pt").read_bytes()
    with editing([tmp_path / "one.pt"]):
        pass
    checkpoint.load(tmp_path / "two.pt", mmap=True)["kept"].zero_()
    assert (tmp_path / "two.pt").read_bytes() == before


def test_options_of_torch_are_as_before(tmp_path: Path) -> None:
    path = tmp_path / "file.pt"
    saved(path)
    before = torch.serialization.get_default_mmap_options()
    with pytest.raises(ZeroDivisionError), editing([path]):
        _ = 1 / 0
    assert torch.serialization.get_default_mmap_options() == before


def test_damage_is_not_given_right_checksums(tmp_path: Path) -> None:
    path = tmp_path / "file.pt"
    saved(path)
    content = bytearray(path.read_bytes())
    content[500_000] ^= 1  # in the large tensor
    path.write_bytes(content)
    message = (
        f"{str(path)!r} is not a checkpoint that torch can load; it is corrupt, truncated, or a "
        "file of another kind"
    )
    with pytest.raises(BadValueError, match=f"^{re.escape(message)}$"), editing([path]):
        pass
    assert path.read_bytes() == bytes(content)


def test_files_of_old_versions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.pt"
    torch.save({"a": torch.zeros(2)}, path, _use_new_zipfile_serialization=False)
    message = f"{str(path)!r} is not a zip archive, as torch.save writes since version 1.6"
    with pytest.raises(BadValueError, match=f"^{re.escape(message)}$"), editing([path]):
        pass


def test_a_stream_in_a_larger_file(tmp_path: Path) -> None:
    stream, path = tmp_path / "stream", tmp_path / "file"
    torch.save(torch.zeros(5, 3), stream)
    content = stream.read_bytes()
    path.write_bytes(b"before" + content + b"after")
    part = Part(path, 6, len(content))
    put(part, torch.arange(15.0).reshape(5, 3))
    assert checkpoint.load_part(part).tolist() == [
        [0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11], [12, 13, 14],
    ]  # fmt: skip
    after = path.read_bytes()
    assert (after[:6], after[-5:], len(after)) == (b"before", b"after", len(content) + 11)
    message = f"{str(path)!r} has Tensor at byte 6; expected a tensor of shape (3, 5)"
    with pytest.raises(BadValueError, match=f"^{re.escape(message)}$"):
        put(part, torch.zeros(3, 5))


@pytest.mark.parametrize("new", [0, 9, 255, 256, 70_000, 2**31, 2**53])
@pytest.mark.parametrize("old", [3, 300, 3.0])
def test_numbers_under_a_key(old: float, new: int, tmp_path: Path) -> None:
    path = tmp_path / "file.pt"
    value = {
        "step": old,
        "steps": old,
        "state": {
            0: {"step": old, "exp_avg": torch.arange(4.0)},
            1: {"step": old + 1, "other": old},
        },
        "groups": [{"step": old, "params": [old]}, {"step": None, "lr": old}],
        "names": ["step", old],
    }
    torch.save(value, path)
    renumber(path, "step", old, new)
    value["step"] = value["state"][0]["step"] = value["groups"][0]["step"] = type(old)(new)
    value["names"][1] = type(old)(new)  # an entry of a list looks the same as one of a dict
    for mmap in (False, True):
        loaded = checkpoint.load(path, mmap=mmap)
        assert loaded["state"][0].pop("exp_avg").tolist() == [0, 1, 2, 3]
        loaded["state"][0]["exp_avg"] = value["state"][0]["exp_avg"]
        assert repr(loaded) == repr(value)
    checksums.check_archive(path)
    check(path)
    assert len(zipfile.ZipFile(path).namelist()) == len(set(zipfile.ZipFile(path).namelist()))


@pytest.mark.parametrize("new", [0, 9, 255, 256, 70_000, 2**31, 2**53])
@pytest.mark.parametrize("old", [3, 300, 3.0])
def test_numbers_in_a_stream_keep_its_length(old: float, new: int, tmp_path: Path) -> None:
    stream, path = tmp_path / "stream", tmp_path / "file"
    torch.save([{"groups": [{"step": old, "lr": old}, {"step": old}], "x": torch.ones(3)}], stream)
    content = stream.read_bytes()
    path.write_bytes(b"before" + content + b"after")
    part = Part(path, 6, len(content))
    renumber(part, "step", old + 1, new)  # the stream has no such number
    assert path.read_bytes() == b"before" + content + b"after"
    renumber(part, "step", old, new)
    (actual,) = checkpoint.load_part(part)
    number = type(old)(new)
    assert repr(actual["groups"]) == repr([{"step": number, "lr": old}, {"step": number}])
    assert actual["x"].tolist() == [1, 1, 1]
    after = path.read_bytes()
    assert (after[:6], after[-5:], len(after)) == (b"before", b"after", len(content) + 11)
    stream.write_bytes(after[6:-5])
    check(stream)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_pickles_of_other_protocols(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "file.pt"
    torch.save({"a": {"step": 5}, "b": [{"step": 5}]}, path, pickle_protocol=protocol)
    renumber(path, "step", 5, 1000)
    assert torch.load(path, weights_only=False) == {"a": {"step": 1000}, "b": [{"step": 1000}]}


def test_a_number_that_is_not_there_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file.pt"
    torch.save({"step": 5}, path)
    before = path.read_bytes()
    renumber(path, "step", 6, 7)
    assert path.read_bytes() == before
    assert pickle.loads(records(path)["file/data.pkl"]) == {"step": 5}
