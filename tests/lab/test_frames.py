"""Frames of captured states: whose they are, and what becomes of damaged ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from qmaps.errors import OutputError
from qmaps.lab import analyze_states, draw
from qmaps.storage.files import read_frame
from tests.analyze.test_analyze import states


def test_frames_that_are_damaged_or_of_unknown_states_are_made_again(tmp_path: Path) -> None:
    made = analyze_states(states(), tmp_path)
    expected = {path: path.read_bytes() for path in made}
    stamps = {path: path.stat().st_mtime_ns for path in made}
    first, second = made[0], made[3]
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
    assert {path: path.read_bytes() for path in made} == expected
    kept = {path for path in made if path.stat().st_mtime_ns == stamps[path]}
    assert kept == set(made) - {first, second}

    about = tmp_path / "frames" / "states.json"
    about.write_bytes(about.read_bytes().replace(b"states", b"stares"))
    with pytest.raises(OutputError) as caught:
        analyze_states(states(), tmp_path)
    assert str(caught.value) == (
        f"out={str(tmp_path / 'frames')!r} has a damaged states.json; delete the folder or "
        "give another one"
    )
    about.unlink()
    analyze_states(states(), tmp_path)
    assert {path: path.read_bytes() for path in made} == expected
    assert not any(path.stat().st_mtime_ns == stamps[path] for path in made)
