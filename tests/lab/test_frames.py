"""Frames of captured states: their states' identity, and repair of damaged frames."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from qmaps.capture import CapturedStates, load
from qmaps.cli import app
from qmaps.errors import BadValueError, OutputError
from qmaps.lab import analyze_states, draw
from qmaps.storage.files import read_frame
from tests.analyze.test_analyze import states
from tests.helpers import Pickling

pytestmark = pytest.mark.slow


def test_frames_that_are_damaged_or_of_unknown_states_are_made_again(tmp_path: Path) -> None:
    frames = analyze_states(states(), tmp_path)
    expected = {path: path.read_bytes() for path in frames}
    stamps = {path: path.stat().st_mtime_ns for path in frames}
    first, second = frames[0], frames[3]
    first.write_bytes(expected[first][:-1])
    flipped = bytearray(expected[second])
    flipped[len(flipped) // 2] ^= 1
    second.write_bytes(flipped)
    with pytest.raises(OutputError) as caught:
        read_frame(second)
    message = f"{str(second)!r} is missing or damaged; delete it, and it will be made again"
    assert str(caught.value) == message
    with pytest.raises(OutputError):
        draw(tmp_path)
    analyze_states(states(), tmp_path)
    assert {path: path.read_bytes() for path in frames} == expected
    untouched = {path for path in frames if path.stat().st_mtime_ns == stamps[path]}
    assert untouched == set(frames) - {first, second}

    identity = tmp_path / "frames" / "states.json"
    identity.write_bytes(identity.read_bytes().replace(b"states", b"stares"))
    with pytest.raises(OutputError) as caught:
        analyze_states(states(), tmp_path)
    assert str(caught.value) == (
        f"out={str(tmp_path / 'frames')!r} has a damaged states.json; delete the folder or "
        "give another one"
    )
    identity.unlink()
    analyze_states(states(), tmp_path)
    assert {path: path.read_bytes() for path in frames} == expected
    assert not any(path.stat().st_mtime_ns == stamps[path] for path in frames)


NAMES = ["up.weight", "up.bias", "down.weight", "down.bias"]


@pytest.fixture
def named(tmp_path: Path) -> CapturedStates:
    """States of a checkpoint without names, under the caller's names."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(80, 70), torch.nn.Linear(70, 90))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.randn(8, 80)).square().mean().backward()
        optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    return load(tmp_path / "optimizer.pt", names=NAMES)


def contents(files: list[Path]) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in files}


def test_workers_compute_the_same_frames(named: CapturedStates, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        expected = contents(analyze_states(named, tmp_path / "serial"))
    finally:
        torch.set_num_threads(threads)
    notes: list[tuple[int, int, str]] = []
    pool = analyze_states(
        named, tmp_path / "pool", workers=1, progress=lambda *note: notes.append(note)
    )
    assert contents(pool) == expected
    count = len(expected)
    assert notes[0] == (0, count, f"{count} jobs on workers")
    assert sorted(name for _, _, name in notes[1:-1]) == sorted(path.stem for path in pool)
    assert [done for done, _, _ in notes[1:]] == [*range(1, count + 1), count]
    assert set(read_frame(pool[-1])["parameter"]) == {"up.weight", "down.weight"}
    with Pickling(2) as executor:
        actual = analyze_states(named, tmp_path / "executor", executor=executor)
        assert contents(actual) == expected
        stamps = {path: path.stat().st_mtime_ns for path in actual}
        actual[2].unlink()
        again = analyze_states(named, tmp_path / "executor", executor=executor)
    assert contents(again) == expected
    assert [path for path in again if path.stat().st_mtime_ns != stamps[path]] == [actual[2]]


def test_states_in_memory_are_not_for_workers(tmp_path: Path) -> None:
    with pytest.raises(BadValueError) as caught:
        analyze_states(states(), tmp_path / "run", workers=2)
    assert str(caught.value) == (
        "states in memory cannot be read by workers; give the path of captured states or of a "
        "checkpoint"
    )
    assert not (tmp_path / "run").exists()


def test_workers_of_the_command_need_states() -> None:
    result = CliRunner().invoke(app, ["figures", "--workers", "2"])
    assert isinstance(result.exception, BadValueError)
    assert str(result.exception) == "workers=2 needs states, which they analyze"
