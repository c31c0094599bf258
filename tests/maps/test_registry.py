"""Declarations of files."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from qmaps import analyze, lab
from qmaps.analyze import replay
from qmaps.registry import declared


def test_classes_of_any_depth_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "parts_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text("class Base: name: str\n")
    (package / "one.py").write_text(
        f"from {package.name} import Base\nclass One(Base): name = 'one'\nclass _Half(Base): pass\n"
    )
    (package / "two.py").write_text(
        f"from {package.name}.one import One\nclass Two(One): name = 'two'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    base = __import__(package.name).Base
    classes = declared(package.name, [str(package)], base)
    assert {cls.__name__ for cls in classes} == {"One", "Two"}


def test_a_lazy_package_keeps_members_that_submodules_are_named_like() -> None:
    importlib.import_module("qmaps.lab.compare")
    importlib.import_module("qmaps.analyze.pareto")
    assert not isinstance(lab.compare, ModuleType)
    assert not isinstance(analyze.pareto, ModuleType)
    for package in (lab, analyze, replay):
        assert set(package.__all__) <= set(dir(package))
        assert [name for name in package.__all__ if not callable(getattr(package, name))] == []
    with pytest.raises(AttributeError, match=r"^module 'qmaps\.lab' has no attribute 'nothing'$"):
        _ = lab.nothing
