"""Declarations of files."""

from __future__ import annotations

from pathlib import Path

import pytest

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
