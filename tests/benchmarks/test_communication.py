"""The benchmark of steps with narrow messages, with small models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import communication
from benchmarks.link import link
from qmaps.errors import BadValueError

pytestmark = pytest.mark.slow


def test_every_method_is_measured(tmp_path: Path) -> None:
    arguments = ["--rounds", "1", "--width", "64", "--out", str(tmp_path)]
    assert communication.main(arguments) == 0
    results = json.loads((tmp_path / "communication.json").read_text())
    assert set(results["seconds"]) == {*communication.BITS, *communication.METHODS}
    ratios = {name: traffic["ratio"] for name, traffic in results["traffic"].items()}
    names = ("plain DDP", "DDP's float16 hook", "B2048/tree@8s", "B2048/DE@4s")
    assert [ratios[name] for name in names[:2]] == [1, 2]
    assert sorted(names, key=ratios.__getitem__) == list(names)
    page = (tmp_path / "communication.md").read_text()
    assert page.count("\n| ") == 4 + len(communication.METHODS)
    assert "| plain DDP |" in page


def test_over_a_link(tmp_path: Path) -> None:
    try:
        with link("1gbit"):
            pass
    except BadValueError as error:
        pytest.skip(str(error))
    arguments = ["--rounds", "1", "--width", "64", "--link", "1gbit", "--out", str(tmp_path)]
    assert communication.main(arguments) == 0
    assert "joined by a link of 1gbit" in (tmp_path / "communication-1gbit.md").read_text()


def test_a_link_joins_two(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        communication.main(["--world", "3", "--link", "1gbit"])
    assert "--world 3 must be 2 with --link" in capsys.readouterr().err
