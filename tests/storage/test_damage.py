"""Damaged files of every kind: the saved values, or one clear error; never other numbers."""

from __future__ import annotations

import io
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import qmaps
from qmaps import capture, sweep
from qmaps.algebra import saved as store
from qmaps.capture import StateRecorder
from qmaps.errors import BadValueError, OutputError, QmapsError
from qmaps.lab.workloads.run_folder import RunFolder, TrainingRun
from qmaps.storage import checkpoint, checksums, files

TRIES = 40 * int(os.environ.get("QMAPS_FUZZ", "1"))
"""Number of damages of each file."""


def damaged(content: bytes, chance: random.Random) -> bytes:
    """`content` with damage as from disks, networks and editors."""
    data = bytearray(content)
    at = chance.randrange(len(data))
    kind = chance.choice(["bit", "bit", "bit", "bits", "byte", "cut", "gap", "copy", "more"])
    if kind in ("bit", "bits"):  # one, or some beside each other
        for place in range(at, min(at + (1 if kind == "bit" else 4), len(data))):
            data[place] ^= 1 << chance.randrange(8)
    elif kind == "byte":
        data[at] = chance.randrange(256)
    elif kind == "cut":
        del data[at:]
    elif kind == "gap":
        data[at : at + 64] = bytes(len(data[at : at + 64]))
    elif kind == "copy":
        origin = chance.randrange(len(data))
        piece = data[origin : origin + 16]
        data[at : at + len(piece)] = piece
    else:
        data += data[:at]
    return bytes(data)


def flat(value: Any) -> Any:
    """`value` as plain objects; `==` compares them bit for bit."""
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), tuple(value.shape), value.contiguous().numpy().tobytes())
    if isinstance(value, pd.DataFrame):
        return value.to_json(double_precision=15)
    if isinstance(value, dict):
        return [(repr(key), flat(member)) for key, member in value.items()]
    if isinstance(value, (list, tuple)):
        return [flat(member) for member in value]
    return repr(value)


def outcome(read: Callable[[], Any]) -> Any:
    """The result of the read, or its error of qmaps."""
    try:
        return read()
    except QmapsError as error:
        return error


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.125)
    model(torch.randn(4, 6)).square().sum().backward()
    optimizer.step()
    return model, optimizer


def frame() -> pd.DataFrame:
    return pd.DataFrame({"name": ["a", "b", None], "value": [1.5, float("nan"), -0.1], "n": 3})


def of_capture(path: Path) -> Any:
    states = capture.load(path)
    read = {(p, s): tensor for p, s, tensor in states.items()}
    options = [(states.hyperparameters(p), states.scalars(p)) for p in states.parameters()]
    return [flat(read), options, states.step, states.optimizer, states.skipped]


def of_tensors(path: Path) -> Any:
    return flat({name: store.to_plain(t) for name, t in store.load(path).items()})


def write_capture(path: Path) -> None:
    model, optimizer = trained()
    with StateRecorder(optimizer, path.parent / "states", names=model) as recorder:
        written = recorder.record()
    assert written is not None
    path.write_bytes(written.read_bytes())


def write_tensors(path: Path) -> None:
    x = torch.randn(30, generator=torch.Generator().manual_seed(0))
    specs = {"a": "B8/DE@8s", "b": "tensor/quantile@4s", "c": "row/linear@5s"}
    store.save({n: qmaps.quantizer(spec).quantize(x.view(5, 6)) for n, spec in specs.items()}, path)


KINDS: dict[str, tuple[Callable[[Path], None], Callable[[Path], Any]]] = {
    "checkpoint.pt": (
        lambda path: checkpoint.save(trained()[1].state_dict(), path),
        lambda path: flat(checkpoint.load(path)),
    ),
    "mapped.pt": (
        lambda path: checkpoint.save(trained()[1].state_dict(), path),
        lambda path: flat(checkpoint.load(path, mmap=True)),
    ),
    "optimizer.pt": (
        lambda path: torch.save({"optimizer": trained()[1].state_dict()}, path),
        of_capture,
    ),
    "step.safetensors": (write_capture, of_capture),
    "tensors.safetensors": (write_tensors, of_tensors),
    "record.json": (
        lambda path: files.write_record(path, {"a": [1, 2.5, None], "b": {"c": "d"}}),
        lambda path: flat(files.read_record(path)),
    ),
    "frame.parquet": (
        lambda path: files.write_frame(path, frame()),
        lambda path: flat(files.read_frame(path)),
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_file_is_refused_or_reads_the_same(name: str, tmp_path: Path) -> None:
    write, read = KINDS[name]
    path = tmp_path / name
    write(path)
    content, expected = path.read_bytes(), read(path)
    chance = random.Random(name)
    refused = 0
    for _ in range(TRIES):
        path.write_bytes(damaged(content, chance))
        actual = outcome(lambda: read(path))
        if isinstance(actual, QmapsError):
            assert "\n" not in str(actual)
            refused += 1
        else:
            assert actual == expected
    assert refused > TRIES / 4


def write_run(folder: Path, done: bool) -> None:
    model, optimizer = trained()
    run = TrainingRun("x", 0, 2)
    run.record(1, "train", {"loss": 0.5})
    run.record(2, "val", {"loss": 0.25, "bits": 1e-3})
    run.state_nbytes = 1234
    files_ = RunFolder.claim(folder, {"lr": 0.125, "betas": (0.9, 0.999)})
    files_.save(model, optimizer, run, 1)
    if done:
        files_.finish(model, run)


def read_run(folder: Path) -> Any:
    model, optimizer = trained()
    run = TrainingRun("x", 0, 2)
    files_ = RunFolder.claim(folder, {"lr": 0.125, "betas": (0.9, 0.999)})
    done = files_.finished(run)
    step = None if done else files_.resume(model, optimizer, run)
    return [done, step, flat(run.losses), run.state_nbytes, flat(optimizer.state_dict())]


@pytest.mark.parametrize("done", [False, True])
def test_a_run_folder_with_a_damaged_file(done: bool, tmp_path: Path) -> None:
    write_run(tmp_path, done)
    expected = read_run(tmp_path)
    chance = random.Random(0)
    names = ["run.json", "losses.csv", "result.json" if done else "checkpoint.pt"]
    for name in names:
        path = tmp_path / name
        content = path.read_bytes()
        for _ in range(TRIES):
            path.write_bytes(damaged(content, chance))
            actual = outcome(lambda: read_run(tmp_path))
            assert "\n" not in str(actual) if isinstance(actual, QmapsError) else actual == expected
        path.write_bytes(content)
    for name in names[::2]:  # a checkpoint may be read without its losses.csv
        path = tmp_path / name
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        with pytest.raises(QmapsError):
            read_run(tmp_path)
        path.write_bytes(content)
    (tmp_path / "run.json").unlink()  # without it nothing identifies the other files
    with pytest.raises(OutputError) as caught:
        read_run(tmp_path)
    assert str(caught.value) == (
        f"{str(tmp_path / 'run.json')!r} is missing or damaged; delete {str(tmp_path)!r} or give "
        "another folder"
    )


def small() -> dict[str, dict[str, torch.Tensor]]:
    g = torch.Generator().manual_seed(0)
    return {name: {"momentum_buffer": torch.randn(40, generator=g)} for name in "ab"}


def swept(out: Path) -> pd.DataFrame:
    return sweep.run(small(), ["B8/DE@4s", "tensor/linear@3s"], out=out, min_quantized_size=0)


def test_a_damaged_part_of_a_sweep_is_measured_again(tmp_path: Path) -> None:
    # As it is measured, not as it is read: some columns have another dtype in a file.
    expected = flat(swept(tmp_path))
    assert flat(swept(tmp_path)) == expected
    parts = sorted((tmp_path / "parts").iterdir())
    assert len(parts) == 2
    chance = random.Random(0)
    for number in range(TRIES):
        path = parts[number % 2]
        content = path.read_bytes()
        path.write_bytes(damaged(content, chance))
        assert flat(swept(tmp_path)) == expected
        assert flat(files.read_frame(path)) == flat(pd.read_parquet(io.BytesIO(content)))
        assert flat(files.read_frame(tmp_path / "sweep.parquet")) == expected


def test_a_damaged_description_of_a_sweep(tmp_path: Path) -> None:
    expected = flat(swept(tmp_path))
    path = tmp_path / "sweep.json"
    refusal = (
        f"out={str(tmp_path)!r} has a damaged sweep.json; delete the folder or give another one"
    )
    content = path.read_bytes()
    chance = random.Random(0)
    for _ in range(TRIES):
        path.write_bytes(damaged(content, chance))
        actual = outcome(lambda: flat(swept(tmp_path)))
        assert str(actual) == refusal if isinstance(actual, QmapsError) else actual == expected
    # Without it nothing identifies the parts.
    path.unlink()
    resumed = sweep.run(small(), ["B8/DE@5s"], out=tmp_path, min_quantized_size=0)
    assert set(resumed["quantizer"]) == {"B8/DE@5s"}


def test_files_of_earlier_versions_have_no_checksums(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    frame().to_parquet(path, index=False)
    assert flat(files.read_frame(path)) == flat(frame())
    path = tmp_path / "r.json"
    files.write_json(path, {"a": 1})
    assert files.read_record(path) == {"a": 1}
    write_tensors(tmp_path / "new.safetensors")
    write_capture(tmp_path / "new-step.safetensors")
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    for name, read in (("new.safetensors", of_tensors), ("new-step.safetensors", of_capture)):
        new, old = tmp_path / name, tmp_path / f"old-{name}"
        with safe_open(new, framework="pt") as file:
            metadata = file.metadata()
        del metadata[checksums.KEY]
        save_file(load_file(new), old, metadata=metadata)
        assert read(old) == read(new)


def test_archives_that_torch_wrote_without_checksums_are_read(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"x": torch.arange(5), "y": [torch.zeros(0)]}, path)
    finally:
        torch.serialization.set_crc32_options(True)
    assert checkpoint.load(path)["x"].tolist() == [0, 1, 2, 3, 4]


def test_a_record_that_is_marked_as_a_folder(tmp_path: Path) -> None:
    """``torch.load`` would allocate memory for it, read nothing, and return uninitialized data."""
    path = tmp_path / "c.pt"
    checkpoint.save({"x": torch.arange(1000.0)}, path)
    content = path.read_bytes()
    name = b"archive/data/0"
    attribute = content.rindex(name) - 8  # of its entry in the archive's directory
    path.write_bytes(content[:attribute] + b"\x10" + content[attribute + 1 :])
    with pytest.raises(BadValueError) as caught:
        checkpoint.load(path)
    assert str(caught.value) == (
        f"{str(path)!r} is not a checkpoint that torch can load; it is corrupt, truncated, "
        "or a file of another kind"
    )


def test_anyone_can_read_these_files(tmp_path: Path) -> None:
    """With torch, safetensors, pandas and json alone."""
    import json

    from safetensors.torch import load_file

    checkpoint.save({"x": torch.ones(2)}, tmp_path / "c.pt")
    assert torch.load(tmp_path / "c.pt", weights_only=True)["x"].tolist() == [1, 1]
    write_capture(tmp_path / "step.safetensors")
    assert load_file(tmp_path / "step.safetensors")["0"].shape == (5, 6)
    files.write_frame(tmp_path / "f.parquet", frame())
    assert flat(pd.read_parquet(tmp_path / "f.parquet")) == flat(frame())
    files.write_record(tmp_path / "r.json", {"a": 1})
    loaded = json.loads((tmp_path / "r.json").read_text())
    assert loaded == {"a": 1, "checksum": loaded["checksum"]}
    assert loaded["checksum"].startswith("qmaps-xxh3:")
