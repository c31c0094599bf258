"""Large parameters: their specs are divided among items, and the rows keep their bits."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pandas as pd
import pytest

from qmaps import sweep
from qmaps.errors import OutputError
from qmaps.sweep import sample
from tests.sweep.data import SPECS, on_disk, plan, same

PLAN = import_module("qmaps.sweep.plan")
FEW = 60300 * 2
"""The work of two specs on parameter a."""

SINGLES = ["B128/DE@4u", "B128/DE@4s", "tensor/linear@4s"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return on_disk(tmp_path_factory.mktemp("sweep"))


@pytest.fixture(scope="module")
def whole(path: Path) -> pd.DataFrame:
    return sweep.run(path, SINGLES + SPECS)


def test_no_parameter_of_usual_size_is_divided(path: Path) -> None:
    assert [item.part for item in plan(path, SPECS)] == [None] * 5


def test_items_of_a_divided_parameter(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PLAN, "WORK", FEW)
    items = plan(path, SINGLES + SPECS)
    parts = {name: [i.part for i in items if i.parameter == name] for name in ("a", "b", "first")}
    assert parts == {
        "a": [(0, 2), (2, 4), (4, 6), (6, 8)],
        "b": [None],
        "first": [None],
    }
    assert [item.number for item in items] == list(range(len(items)))
    assert [item.work for item in items if item.parameter == "a"] == [FEW] * 4
    monkeypatch.setattr(PLAN, "WORK", 5400)
    parts_of_first = [i.part for i in plan(path, SINGLES + SPECS) if i.parameter == "first"]
    assert parts_of_first == [(0, 1), (1, 2), (2, 8)]  # it has no pairs


@pytest.mark.parametrize("work", [FEW, 1])
def test_the_rows_are_those_of_one_item(
    path: Path, whole: pd.DataFrame, work: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(PLAN, "WORK", work)
    same(sweep.run(path, SINGLES + SPECS), whole)
    for _ in range(2):  # the second time from the parts
        same(sweep.run(path, SINGLES + SPECS, out=tmp_path), whole)


def test_a_pool_measures_the_items_of_one_parameter(
    path: Path, whole: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PLAN, "WORK", FEW)
    same(sweep.run(path, SINGLES + SPECS, workers=2), whole)


def test_a_sample_of_all_rows_is_divided(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PLAN, "WORK", FEW)
    whole, sampled = (plan(path, SINGLES + SPECS, sample=share) for share in (None, 1.0))
    assert [item.part for item in sampled] == [item.part for item in whole]


def test_a_sample_is_not_divided(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PLAN, "WORK", 1)
    monkeypatch.setattr(sample, "LEAST", 1)
    items = plan(path, SPECS, sample=0.1)
    assert [item.part for item in items if item.parameter == "c"] == [None]  # of several units


def test_a_folder_of_other_items_is_refused(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep.run(path, SPECS, out=tmp_path)
    monkeypatch.setattr(PLAN, "WORK", FEW)
    with pytest.raises(OutputError, match="holds a sweep of other specs or states"):
        sweep.run(path, SPECS, out=tmp_path)
