"""Cached frames stay valid until code under them changes."""

from __future__ import annotations

import inspect
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from reproduction import PAPERS, run, sources
from reproduction.eight_bit import figure_6, table_6
from reproduction.exhibit import Needs
from tests.reproduction.conftest import adam_states

pytestmark = pytest.mark.slow


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the sources, used as the checkout."""
    root = tmp_path / "checkout"
    packages = [sources.ROOT / name for name in ("qmaps", "reproduction")]
    for path in (file for package in packages for file in package.rglob("*.py")):
        copy = root / path.relative_to(sources.ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    monkeypatch.setattr(sources, "ROOT", root)
    return root


@pytest.mark.parametrize(
    ("edited", "counts"),
    [
        ("reproduction/eight_bit/_maps.py", True),
        ("reproduction/four_bit/_matrices.py", True),
        ("reproduction/context.py", True),
        ("reproduction/analyses/bit_fields.py", True),
        ("reproduction/speedup/model.py", True),
        ("reproduction/workloads/minilm.py", True),
        ("reproduction/figures/bit_fields.py", False),
        ("qmaps/maps/de.py", True),
        ("qmaps/analyze/update_error.py", True),
        ("qmaps/algebra/quantizer.py", True),
        ("reproduction/eight_bit/table_1.py", False),
        ("reproduction/page.py", False),
        ("reproduction/summary.py", False),
        ("qmaps/figures/outliers.py", False),
        ("qmaps/cli/lab.py", False),
    ],
)
def test_sources_of_frames(tree: Path, edited: str, counts: bool) -> None:
    assert (tree / edited).exists()
    before = sources.shared.__wrapped__()
    with (tree / edited).open("a") as file:
        file.write("# another line\n")
    assert (sources.shared.__wrapped__() != before) is counts


def test_an_own_module_counts() -> None:
    assert sources.digest(table_6.build) != sources.digest(figure_6.build)
    assert sources.digest(table_6.build) == sources.digest(table_6.find)


def test_exhibits_of_states_share_only_hashed_inputs() -> None:
    for paper in PAPERS.values():
        for exhibit in paper.exhibits:
            if exhibit.needs is not Needs.STATES:
                continue
            module = exhibit.build.__module__
            package = module.rpartition(".")[0]
            used = {
                value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", "")
                for value in vars(sys.modules[module]).values()
            }
            near = {name for name in used if name.startswith(f"{package}.")}
            assert {name for name in near if "._" not in name} == {module}


def test_frames_are_made_anew_where_shared_code_changed(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = replace(PAPERS["8-bit-optimizers"], exhibits=(table_6.EXHIBIT,))
    monkeypatch.setitem(PAPERS, only.name, only)
    monkeypatch.setattr(sources, "shared", sources.shared.__wrapped__)
    frame = tmp_path / "runs/frames/8-bit-optimizers/table-6/errors.parquet"

    def frame_time() -> int:
        folders = {"out": tmp_path / "out", "runs": tmp_path / "runs"}
        run([only.name], states=[adam_states(0)], **folders)
        return frame.stat().st_mtime_ns

    first = frame_time()
    assert frame_time() == first
    with (tree / "reproduction/eight_bit/_maps.py").open("a") as file:
        file.write("# another line\n")
    assert frame_time() > first
