"""Checkpoints with any part replaced: they are read, or refused in one line."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from qmaps.capture import load
from qmaps.capture.conversion import convert_file
from qmaps.capture.readers import READERS, reader_of
from qmaps.capture.readers.zero import STAND_INS, StandIn
from qmaps.storage import checkpoint
from tests.capture.fixtures import HERE
from tests.helpers import examples
from tests.odd import CONTAINERS, NUMBERS, TEXTS, refused, tensors

FOLDERS = [path for path in sorted(HERE.glob("*/*")) if path.is_dir()]
NAMED = {"a.exp_avg": torch.ones(2, 3), "a.step": torch.tensor(3.0), "b.exp_avg": torch.ones(2)}
SIZES = [-1, 0, 1, 2, 3, 2**20, 2**40, 2**63]
JSON = ("_METADATA", ".zarray", "zarr.json")
"""Files of Orbax."""

OBJECTS = [*NUMBERS, *TEXTS, *CONTAINERS]


def of_deepspeed(patch: pytest.MonkeyPatch) -> dict[str, type]:
    """Classes that pickle under the names of DeepSpeed's."""
    results = {}
    modules = {part: ModuleType(part) for part in (full.rpartition(".")[0] for full in STAND_INS)}
    for part, module_of in {"deepspeed": ModuleType("deepspeed"), **modules}.items():
        patch.setitem(sys.modules, part, module_of)
    for full in STAND_INS:
        module, _, name = full.rpartition(".")
        results[full] = type(name, (StandIn,), {"__module__": module})
        setattr(modules[module], name, results[full])
    return results


def members(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        return [*value.items()]
    if isinstance(value, (list, tuple)):
        return [*enumerate(value)]
    return [*vars(value).items()] if hasattr(value, "__dict__") and not callable(value) else []


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container or object inside, and a key, position or attribute of it."""
    if isinstance(value, torch.Tensor):
        return
    for key, member in members(value):
        if not isinstance(value, tuple):
            yield value, key
        yield from places(member)


def put(into: Any, key: Any, value: Any) -> None:
    if isinstance(into, (dict, list)):
        into[key] = value
    else:
        object.__setattr__(into, key, value)


def lie(chance: Random, content: Any) -> None:
    """Put another value into one place: of another place, a size, any object, or none."""
    into, key = chance.choice([*places(content)])
    kind = chance.choice(["other", "other", "sizes", "object", "none"])
    if kind == "none" and isinstance(into, dict):
        del into[key]
    elif kind == "other":
        source, source_key = chance.choice([*places(content)])
        put(into, key, dict(members(source))[source_key])
    elif kind == "sizes":
        sizes = chance.choices(SIZES, k=chance.randrange(4))
        put(into, key, chance.choice([sizes, tuple(sizes), chance.choice(SIZES)]))
    else:
        put(into, key, chance.choice([*OBJECTS, *tensors()]))


def rewrite(chance: Random, path: Path) -> None:
    """Replace a value in a file; the format stays valid for its reader."""
    if path.name == ".metadata":
        saved = pickle.loads(path.read_bytes())
        lie(chance, saved)
        path.write_bytes(pickle.dumps(saved))
    elif path.suffix == ".safetensors":
        content = path.read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")
        saved = json.loads(content[8:end])
        lie(chance, saved)
        header = json.dumps(saved).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + content[end:])
    elif path.name in JSON:
        saved = json.loads(path.read_bytes())
        lie(chance, saved)
        path.write_text(json.dumps(saved))
    elif path.suffix == ".keras":
        with zipfile.ZipFile(path) as archive:
            records = {entry.filename: archive.read(entry) for entry in archive.infolist()}
        saved = json.loads(records["config.json"])
        lie(chance, saved)
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in (records | {"config.json": json.dumps(saved)}).items():
                archive.writestr(name, content)
    elif path.suffix == ".h5" or "orbax" in path.parts:  # HDF5 and tensorstore parse these bytes
        path.write_bytes(path.read_bytes()[: chance.randint(0, path.stat().st_size)])
    elif path.suffix == ".pt" and chance.random() < 0.5:
        with pytest.MonkeyPatch.context() as patch:
            saved = checkpoint.load(path, stand_ins=of_deepspeed(patch))
            lie(chance, saved)
            torch.save(saved, path)
    elif path.suffix == ".pt":  # bytes of the pickle, with right checksums
        with zipfile.ZipFile(path) as archive:
            records = {entry.filename: archive.read(entry) for entry in archive.infolist()}
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in records.items():
                pickled = name.endswith("/data.pkl")
                archive.writestr(name, flipped(chance, content) if pickled else content)
    else:
        path.write_bytes(flipped(chance, path.read_bytes()))


def flipped(chance: Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def change(chance: Random, folder: Path) -> None:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    path = chance.choice(files)
    kind = chance.choice([*["rewrite"] * 6, "copy", "delete", "cut"])
    if kind == "rewrite":
        rewrite(chance, path)
    elif kind == "copy":
        shutil.copy(chance.choice(files), path.with_suffix(".kept"))
        path.with_suffix(".kept").replace(path)
    elif kind == "delete":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: chance.randint(0, path.stat().st_size)])


def read(path: Path) -> None:
    states = load(path)
    for parameter in states.parameters():
        for name in states.states(parameter):
            states.tensor(parameter, name, check=False)
            part = states.opened(parameter, name)
            part(0, min(2, math.prod(states.shape(parameter, name))))


COUNT = itertools.count()


@pytest.mark.slow
@pytest.mark.fuzz
@settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**32))
def test_lies_are_read_or_refused(seed: int, tmp_path: Path) -> None:
    chance = Random(seed)
    # Lazily read files must not be overwritten, so each example has its own.
    source = chance.choice([*FOLDERS, None])
    folder = path = tmp_path / f"{next(COUNT)}"
    if source is not None:
        folder = path = tmp_path / source.parent.name / folder.name
    if source is None:
        path = folder / "o.safetensors"
        folder.mkdir()
        save_file(NAMED, path)
    else:
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns("expected.pt"))
    ours = folder.with_suffix(".pt")
    fits = source is not None and not refused(convert_file, source, ours, to="torch")
    try:
        for _ in range(chance.randint(1, 2)):
            change(chance, folder)
    except Exception:  # a file could not hold it
        return
    refused(read, path)
    refused(convert_file, path, folder.with_suffix(".torch.pt"), to="torch")
    if fits:
        refused(convert_file, ours, folder.with_suffix(".like"), to="torch", like=folder)


def test_every_reader_is_lied_to() -> None:
    kinds = {reader.name for path in FOLDERS if (reader := reader_of(path))}
    assert kinds == {*READERS}
