"""The catalogue, read by commands in place of torch, matches the package."""

from __future__ import annotations

import pytest

from docsite import catalogue

pytestmark = pytest.mark.slow


def test_the_catalogue_is_up_to_date() -> None:
    written = catalogue.FILE.read_text(encoding="utf-8")
    assert written == catalogue.text(), "python -m docsite.catalogue"
