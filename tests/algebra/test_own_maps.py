"""Maps of users in files: Python modules and codebooks in JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import qmaps
from qmaps import maps, normalize
from qmaps.algebra import own_maps
from qmaps.algebra.own_maps import load_files, own_values, read_codebook
from qmaps.errors import BadValueError, UnknownPartError

MODULE = """
from dataclasses import dataclass

import torch

import qmaps
from qmaps.maps import Map
from qmaps.normalize.tensor import PerTensor


@dataclass(frozen=True)
class Cubic(Map, name="own-cubic"):
    'Cubes of evenly spaced numbers.'

    def values(self):
        i = torch.linspace(-1 if self.signed else 0, 1, 2**self.bits, dtype=torch.float64)
        return i**3


@dataclass(frozen=True)
class Whole(PerTensor, name="own-whole"):
    'One scale, by another name.'


book = qmaps.Codebook([-1, 0, 1], label="three")
"""


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Restore the registries after a test."""
    registered, normalizers = dict(maps.REGISTRY), list(normalize.REGISTRY)
    modules, path = set(sys.modules), list(sys.path)
    yield
    maps.REGISTRY.clear()
    maps.REGISTRY.update(registered)
    normalize.REGISTRY[:] = normalizers
    own_maps.LOADED.clear()
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith(("mymaps", "beside")):
            del sys.modules[name]


def test_specs_name_the_maps_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mymaps.py"
    file.write_text(MODULE)
    with pytest.raises(UnknownPartError) as caught:
        qmaps.quantizer("B128/own-cubic@4s")
    assert caught.value.known == "spec='B128/own-cubic@4s': unknown map 'own-cubic'"
    (book,) = load_files([file])
    assert book.label == "three"
    assert str(qmaps.quantizer("own-whole/own-cubic@4u").map) == "own-cubic@4u"
    assert load_files([file, tmp_path / "." / "mymaps.py"]) == [book, book]  # run once


def test_a_file_imports_modules_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside_own.py").write_text("VALUES = [-1, 0, 1]\n")
    (tmp_path / "mymaps.py").write_text(
        "import beside_own, qmaps\nbook = qmaps.Codebook(beside_own.VALUES, label='beside')\n"
    )
    assert [book.label for book in load_files([tmp_path / "mymaps.py"])] == ["beside"]


BAD_FILES = {
    "": "declares no map and no normalizer, such as class Cubic(Map, name='cubic'), and no "
        "qmaps.Codebook",
    "x = (": "is no Python ('(' was never closed, line 1)",
    "\0": "is no Python (source code string cannot contain null bytes)",
    "import qmaps_none": "raised ModuleNotFoundError: No module named 'qmaps_none'",
    "raise SystemExit(3)": "raised SystemExit: 3",
    MODULE.replace("own-cubic", "DE"): "raised BadValueError: name='DE' is the name of a built-in "
        "map",
    MODULE.replace("def values", "def other"): "declares the map 'own-cubic', which raised "
        "TypeError: Can't instantiate abstract class Cubic with abstract method values",
    MODULE.replace("i**3", "-i"): "declares the map 'own-cubic', whose values are not finite and "
        "ascending",
}  # fmt: skip


@pytest.mark.parametrize("text", BAD_FILES)
def test_a_file_without_maps_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "mymaps.py"
    file.write_text(text)
    with pytest.raises(BadValueError) as caught:
        load_files([file])
    assert str(caught.value).startswith(f"load={str(file)!r} {BAD_FILES[text]}")


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none.py", "No such file or directory"),
                      (tmp_path, "Is a directory")):  # fmt: skip
        with pytest.raises(BadValueError) as caught:
            load_files([path])
        assert str(caught.value) == f"load={str(path)!r} cannot be read ({why})"


def test_a_codebook_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    values = [-1, -0.5, 0, 0.5, 1]
    file.write_text(json.dumps({"label": "own", "signed": True, "bits": 4, "values": values}))
    book = read_codebook(file)
    assert (str(book), book.codebook().tolist()) == ("own@4s", values)
    file.write_text('{"values": [0, 0.5, 1]}')
    assert str(read_codebook(file)) == "mine@2u"


BAD_BOOKS = {
    "{": "it is damaged or no codebook; expected JSON, a dict",
    "[1, 2]": "it is damaged or no codebook; expected JSON, a dict",
    "[" * 100_000: "it is damaged or no codebook; expected JSON, a dict",
    "{}": "it is no codebook; 'values' is missing",
    '{"values": [0, 1], "lable": "x"}': "it has the key 'lable'; allowed are label, values, "
        "signed, bits; nearest match: label",
    '{"values": [0, 1], "values": [0, 1]}': "it has the key 'values' twice in one dict",
    '{"values": "0, 1"}': "values='0, 1' must be a list of numbers",
    '{"values": [0, "1"]}': "values[1]='1' must be a number",
    '{"values": [0, true]}': "values[1]=True must be a number",
    '{"values": [0, [1]]}': "values[1]=[1] must be a number",
    '{"values": [0, NaN]}': "values[1]=nan must be finite",
    '{"values": [0, 1e400]}': "values[1]=inf must be finite",
    '{"values": [0, 1%s]}' % ("0" * 400): "values[1]=<int of 1329 bits> must be finite",
    '{"values": [0, 1, 0.5]}': "values[1]=1.0 and values[2]=0.5 must be in ascending order",
    '{"values": [0, 1, 1]}': "values[1]=1.0 and values[2]=1.0 must be in ascending order",
    '{"values": [1, 1.000000000001]}': "values holds equal numbers (as float32); they must be "
        "distinct",
    '{"values": [0, 1e39]}': "values holds NaN or infinity; only finite numbers are allowed",
    '{"values": [0]}': "values has 1 entries; 2 to 65536 are allowed",
    json.dumps({"values": list(range(65537))}): "values has 65537 entries; 2 to 65536 are allowed",
    '{"values": [-1, 1], "signed": false}': "values holds -1.0, which is negative; an unsigned "
        "codebook has no negative values",
    '{"values": [0, 1], "signed": "yes"}': "signed='yes' must be True, False or None",
    '{"values": [0, 1], "label": 3}': "label=3 must be a str",
    '{"values": [0, 1], "label": "DE"}': "label='DE' is the name of a built-in map",
    '{"values": [0, 1], "bits": 2.5}': "bits=2.5 must be an int",
}  # fmt: skip


@pytest.mark.parametrize("text", BAD_BOOKS, ids=range(len(BAD_BOOKS)))
def test_a_codebook_that_is_none_is_one_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(text)
    with pytest.raises(BadValueError) as caught:
        read_codebook(file)
    assert str(caught.value) == f"codebook={str(file)!r}: {BAD_BOOKS[text]}"


def test_a_codebook_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mine.json"
    text_file = tmp_path / "mine.txt"
    for path, why in {
        file: "it cannot be read (No such file or directory)",
        text_file: f"path={str(text_file)!r} must end in .json, .yaml or .yml",
    }.items():
        with pytest.raises(BadValueError) as caught:
            read_codebook(path)
        assert str(caught.value) == f"codebook={str(path)!r}: {why}"
    file.write_text('{"values": [0, 1]}')
    monkeypatch.setattr(own_maps, "LARGEST", 10)
    with pytest.raises(BadValueError, match=r"it cannot be read \(File too large\)"):
        read_codebook(file)


def test_values_tell_maps_of_one_name_apart(tmp_path: Path) -> None:
    file = tmp_path / "mymaps.py"
    file.write_text(MODULE)
    load_files([file])
    quantizers = [qmaps.quantizer(spec) for spec in ("B128/own-cubic@2u", "B128/DE@4u")]
    (text,) = own_values([*quantizers, None])
    assert text.startswith("own-cubic@2u: [0.0, 0.037")
