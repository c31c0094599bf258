"""Shards of a sweep and what merging them gives."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from qmaps import sweep
from qmaps.errors import BadValueError, OutputError
from qmaps.storage.files import write_record
from qmaps.sweep.parts import shard_of
from tests.sweep.data import SPECS, on_disk, same


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return on_disk(tmp_path_factory.mktemp("sweep"))


def test_three_merged_shards_have_the_bits_of_one_process(path: Path, tmp_path: Path) -> None:
    expected = sweep.run(path, SPECS)
    folders = [tmp_path / str(k) for k in (1, 2, 3)]
    rows = 0
    for k, folder in enumerate(folders, 1):
        rows += len(sweep.run(path, SPECS, out=folder, shard=(k, 3)))
        assert not (folder / "sweep.parquet").exists()
    assert rows == len(expected)
    same(sweep.merge(folders, out=tmp_path / "all"), expected)
    same(pd.read_parquet(tmp_path / "all" / "sweep.parquet"), expected)


def test_shards_may_share_a_folder(path: Path, tmp_path: Path) -> None:
    for k in (2, 1):
        sweep.run(path, SPECS, out=tmp_path / "run" / "sweep", shard=(k, 2))
    same(sweep.merge([tmp_path / "run"], out=tmp_path), sweep.run(path, SPECS))


def test_shards_are_disjoint_and_of_similar_size(path: Path) -> None:
    items = sweep.plan(path, SPECS)
    for count in (1, 2, 3, 7):
        shards = [shard_of(items, (k, count)) for k in range(1, count + 1)]
        numbers = [item.number for shard in shards for item in shard]
        assert sorted(numbers) == [0, 1, 2, 3, 4]
    first, second = ([item.parameter for item in shard_of(items, (k, 2))] for k in (1, 2))
    assert (first, second) == (["c"], ["a", "b", "first", "e"])
    assert sweep.run(path, SPECS[:1], out=path.parent / "empty", shard=(7, 7)).empty


def test_what_cannot_be_merged(path: Path, tmp_path: Path) -> None:
    one, two, other = (tmp_path / name for name in ("one", "two", "other"))
    sweep.run(path, SPECS, out=one, shard=(1, 2))
    sweep.run(path, SPECS, out=two, shard=(2, 2))
    sweep.run(path, SPECS[:2], out=other, shard=(2, 2))
    cases = {
        f"folder={str(one)!r}: 4 of 5 parts are missing or damaged, the first of 'a'; run the "
        "shards that are missing and merge again": [one],
        f"folder={str(other)!r} holds a shard of another sweep than {str(one)!r}; merge shards of "
        "the same states and specs": [one, other],
        f"folder={str(tmp_path)!r} holds no sweep (sweep.json); give a folder of shards": [
            tmp_path
        ],
    }
    for message, folders in cases.items():
        with pytest.raises(OutputError) as caught:
            sweep.merge(folders, out=tmp_path / "all")
        assert str(caught.value) == message
    (two / "parts" / "00001.parquet").write_bytes(b"torn")
    with pytest.raises(OutputError, match="1 of 5 parts are missing or damaged, the first of 'b'"):
        sweep.merge([one, two], out=tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_shards_of_two_sweeps_are_never_mixed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    sweep.run(path, SPECS, out=one, shard=(1, 2))
    sweep.run(path, SPECS[:2], out=other)
    message = (
        f"out={str(one)!r} holds a sweep of other specs or states; delete the folder or give "
        "another one"
    )
    kept = {file: file.read_bytes() for file in one.rglob("*.*")}
    for case in (
        lambda: sweep.run(path, SPECS[:2], out=one, shard=(2, 2)),
        lambda: sweep.merge([other], out=one),
    ):
        with pytest.raises(OutputError) as caught:
            case()
        assert str(caught.value) == message
    assert {file: file.read_bytes() for file in one.rglob("*.*")} == kept
    # Both begin at the same time, and find no record.
    (one / "sweep.json").rename(one / "hidden")

    def begin_first(*given: object, **named: object) -> None:
        (one / "hidden").rename(one / "sweep.json")
        write_record(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("qmaps.sweep.parts.write_record", begin_first)
    with pytest.raises(OutputError) as caught:
        sweep.run(path, SPECS[:2], out=one, shard=(2, 2))
    assert str(caught.value) == message
    assert (one / "sweep.json").read_bytes() == kept[one / "sweep.json"]


def test_one_folder_need_not_be_a_list(path: Path, tmp_path: Path) -> None:
    expected = sweep.run(path, SPECS[:2], out=tmp_path, shard=(1, 1))
    same(sweep.merge(tmp_path, out=tmp_path), expected)
    same(sweep.merge(str(tmp_path), out=tmp_path), expected)


def test_shards_that_are_none(path: Path, tmp_path: Path) -> None:
    for shard in ((0, 3), (4, 3)):
        with pytest.raises(BadValueError) as caught:
            sweep.run(path, SPECS, out=tmp_path, shard=shard)
        assert str(caught.value) == f"shard={shard[0]}/3 must be from 1/3 to 3/3"
    with pytest.raises(BadValueError) as caught:
        sweep.run(path, SPECS, shard=(1, 3))
    assert str(caught.value) == "shard=1/3 needs out, the folder of its parts"
    with pytest.raises(BadValueError) as caught:
        sweep.merge([], out=tmp_path)
    assert str(caught.value) == "folders=[] must name at least one folder of a sweep"
