"""Pages of real runs in a browser, under reports or in QMAPS_TEST_PAGES.

``QMAPS_TEST_PAGES=FOLDER python -m pytest tests/reproduction/test_made_pages.py`` opens pages of
``make papers-quick``; missing pages are then an error.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reproduction import PAPERS
from tests.browser import CHROMIUM, WHY_NOT, check

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NAMED = os.environ.get("QMAPS_TEST_PAGES")
FOLDER = ROOT / (NAMED or "reports")


@pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)
@pytest.mark.parametrize("file", ["papers.html", *(f"{name}/index.html" for name in PAPERS)])
def test_a_page_that_was_made(file: str) -> None:
    page = FOLDER / file
    if NAMED is None and not page.exists():
        pytest.skip(f"reports/{file} is not there yet; `make papers` makes it")
    check(page)


def test_committed_pages_say_how_they_are_made() -> None:
    for file in (ROOT / "reports" / "papers.md", *(ROOT / "reports").glob("*/README.md")):
        if file.parent.name in PAPERS or file.name == "papers.md":
            assert "\n`python -m reproduction`; " in file.read_text(encoding="utf-8"), file
