"""Errors name the format of sound files and folders of other formats."""

import io
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

from qmaps.capture import load
from qmaps.capture.conversion import convert_file
from qmaps.errors import CaptureError
from qmaps.storage.kinds import ADVICE, IN_FOLDERS, kind_of


def archive(*names: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as written:
        for name in names:
            written.writestr(name, b"0")
    return content.getvalue()


def array() -> bytes:
    content = io.BytesIO()
    np.save(content, np.zeros(3))
    return content.getvalue()


FILES = {
    "model.gguf": (b"GGUF\x03\0\0\0", "a model in GGUF, of llama.cpp"),
    "old.h5": (b"\x89HDF\r\n\x1a\n", "an HDF5 file, such as Keras saves"),
    "array.npy": (array(), "an array of NumPy"),
    "frame.parquet": (b"PAR1", "a Parquet file"),
    "o.pt.gz": (b"\x1f\x8b\x08\0", "a file compressed by gzip"),
    "o.pt.zst": (b"\x28\xb5\x2f\xfd", "a file compressed by zstd"),
    "store.db": (b"SQLite format 3\0", "a database of SQLite"),
    "model.safetensors.index.json": (b'{"weight_map": {"w": "a.safetensors"}}', "a JSON file"),
    "m.pdparams": (b"\x80\x02}q\0.", "a model of Paddle"),
    "ckpt-1.index": (b"\0\0", "an index of TensorFlow"),
    "model.zip": (archive("config.json", "model.weights.h5"), "a model of Keras"),
    "o.npz": (archive("w.npy"), "a file of NumPy arrays, such as MLX and JAX save"),
    "traced.pt": (archive("m/constants.pkl", "m/data.pkl"), "a TorchScript model"),
    "renamed.bin": (
        b"\x40" + bytes(7) + b'{"a"',
        "a safetensors file, whose name must end with .safetensors",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    content, kind = FILES[name]
    path.write_bytes(content)
    message = f"^{re.escape(f'{str(path)!r} is {kind}, {ADVICE}')}$"
    with pytest.raises(CaptureError, match=message):
        load(path)
    with pytest.raises(CaptureError, match=message):
        convert_file(path, tmp_path / "out", to="torch")


@pytest.mark.parametrize("pattern", IN_FOLDERS)
def test_folders(pattern: str, tmp_path: Path) -> None:
    path = tmp_path / pattern.replace("*", "x")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"")
    path.with_name(f"y{path.name}").write_bytes(b"")  # one optimizer of Paddle would be read
    message = f"^{re.escape(f'{str(tmp_path)!r} is {IN_FOLDERS[pattern]}, {ADVICE}')}$"
    with pytest.raises(CaptureError, match=message):
        load(tmp_path)
    with pytest.raises(CaptureError, match=message):
        convert_file(tmp_path, tmp_path / "out", to="torch")


def test_damaged_files_and_those_of_torch_are_of_no_other_kind(tmp_path: Path) -> None:
    path = tmp_path / "o.pt"
    for content in (b"", b"PK\x03\x04", b"\x80\x02}q\0.", archive("o/data.pkl", "o/version")):
        path.write_bytes(content)
        assert kind_of(path) is None
    assert kind_of(tmp_path) is None
