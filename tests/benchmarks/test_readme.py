"""The measured tables of README.md are those of the committed results."""

from __future__ import annotations

import pytest

from benchmarks import readme


def test_tables_are_up_to_date() -> None:
    text = (readme.ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.updated(text) == text


def test_each_table_must_be_in_the_file_once() -> None:
    with pytest.raises(ValueError, match=r"README\.md must have one table 'speed', got 0"):
        readme.updated("no table")
