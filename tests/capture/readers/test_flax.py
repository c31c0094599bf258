"""Flax: files of ``flax.serialization``, read without MessagePack's package."""

import io
import re
from pathlib import Path

import pytest
import torch

from qmaps.capture import load
from qmaps.capture.readers.flax import Bytes, Unpacker
from qmaps.errors import CaptureError
from tests.capture.fixtures import HERE, expect

NAMES = sorted(path.name for path in (HERE / "flax").iterdir() if path.is_dir())
STEPS = {"multi-steps": 2, "rmsprop": 0}
FILE = HERE / "flax/masked/state.msgpack"

pytestmark = pytest.mark.filterwarnings("ignore:.*has no betas")


@pytest.mark.parametrize("name", NAMES)
def test_values_are_those_of_optax(name: str) -> None:
    folder = HERE / "flax" / name
    states = load(folder / "state.msgpack")
    expect(states, f"flax/{name}")
    assert states.step == STEPS.get(name, 4)
    assert "(in, out)" in states.note
    assert load(folder).fingerprint() == states.fingerprint()


def test_bfloat16_is_kept() -> None:
    states = load(FILE)
    kinds = {(name, state): lazy.dtype for name, state, lazy in states.lazies()}
    assert kinds["dense.bias", "exp_avg_sq"] == torch.bfloat16
    assert kinds["dense.kernel", "exp_avg_sq"] == torch.float32


VALUES = {
    "00": 0,
    "7f": 127,
    "ff": -1,
    "e0": -32,
    "c0": None,
    "c2": False,
    "c3": True,
    "cb3ff8000000000000": 1.5,
    "ca3fc00000": 1.5,
    "cc80": 128,
    "cd0100": 256,
    "ce00010000": 65536,
    "cf0000000100000000": 2**32,
    "d080": -128,
    "d1ff00": -256,
    "d2ffff0000": -65536,
    "d3ffffffff00000000": -(2**32),
    "a161": "a",
    "d90161": "a",
    "da000161": "a",
    "db0000000161": "a",
    "9201c0": [1, None],
    "dc000101": [1],
    "dd0000000101": [1],
    "81a16105": {"a": 5},
    "de0001a16105": {"a": 5},
    "df00000001a16105": {"a": 5},
    "c40141": Bytes(2, 1),
    "c5000141": Bytes(3, 1),
    "c60000000141": Bytes(5, 1),
    "d40141": Bytes(2, 1, 1),
    "d80300112233445566778899aabbccddeeff": Bytes(2, 16, 3),
    "c7020141ff": Bytes(3, 2, 1),
    "c800020141ff": Bytes(4, 2, 1),
    "c9000000020141ff": Bytes(6, 2, 1),
}
"""Every form of a value, as the specification of MessagePack has them."""


@pytest.mark.parametrize("form", VALUES)
def test_forms_of_messagepack(form: str) -> None:
    content = bytes.fromhex(form)
    file = io.BytesIO(content)
    assert Unpacker(file, len(content)).value() == VALUES[form]
    assert file.tell() == len(content)
    for end in range(1, len(content)):
        with pytest.raises(ValueError, match="the file ends early"):
            Unpacker(io.BytesIO(content[:end]), end).value()


LIES = {
    "deep": b"\x91" * 100,
    "long": b"\xdf\xff\xff\xff\xff",
    "unknown": b"\xc1",
    "more": b"\x80\x00",
    "list": b"\x90",
    "empty": b"",
    "other": b"\x81\xa1a\x01",
}


@pytest.mark.parametrize("name", LIES)
def test_other_files_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "state.msgpack"
    path.write_bytes(LIES[name])
    with pytest.raises(CaptureError, match=re.escape(repr(str(path)))):
        load(path)


def test_containers_have_a_depth() -> None:
    for depth, message in ((64, "the file ends early"), (65, "more than 64 containers in one")):
        with pytest.raises(ValueError, match=message):
            Unpacker(io.BytesIO(b"\x91" * depth), depth).value()


def test_arrays_of_other_sizes_and_dtypes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.msgpack"
    content = FILE.read_bytes()
    path.write_bytes(
        content.replace(b"\x93\x92\x03\x04\xa7float32", b"\x93\x92\x03\x05\xa7float32")
    )
    with pytest.raises(
        CaptureError, match=r"48 bytes are no torch.float32 tensor of shape \(3, 5\)"
    ):
        load(path)
    path.write_bytes(content.replace(b"\xa7float32", b"\xa7floatXX"))
    with pytest.raises(CaptureError, match=r"in floatXX, which is not read$"):
        load(path)
    path.write_bytes(content[:-1])
    with pytest.raises(CaptureError, match="the file ends early"):
        load(path)


def test_a_file_of_another_kind_is_called_so(tmp_path: Path) -> None:
    path = tmp_path / "state.msgpack"
    path.write_bytes(b"GGUF\x03\0\0\0")
    with pytest.raises(
        CaptureError, match=r"is a model in GGUF, of llama\.cpp, which is not read;"
    ):
        load(path)
