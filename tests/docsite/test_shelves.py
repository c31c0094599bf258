"""Every guide and notebook is on a shelf of docs/README.md; links between files resolve."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from docsite import kinds
from docsite.kinds import notebooks, repository
from docsite.page import ROOT, Page

pytestmark = pytest.mark.slow

GUIDES = sorted((ROOT / "docs").glob("*.md"))
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_every_page_is_on_one_shelf() -> None:
    shelves = repository.shelves()
    assert list(shelves) == ["Start", "How to", "Reference", "Background"]
    places = [place for places in shelves.values() for place in places]
    assert len(places) == len(set(places))
    pages = {repository.place_of(path) for path in (*GUIDES, *NOTEBOOKS)}
    assert pages - set(places) == {repository.CONTENTS}


def test_the_navigation_has_the_shelves(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = [Page(repository.place_of(path), path.stem, "") for path in NOTEBOOKS]
    monkeypatch.setattr(notebooks, "pages", lambda: pages)
    monkeypatch.setattr(kinds, "SECTIONS", {"Reference": {"Maps": lambda: pages[:1]}})
    actual = kinds.navigation()
    assert list(actual) == ["Home", *repository.shelves()]
    assert [page.path for page in actual["Home"]] == ["index.md", "contents.md"]
    assert "choosing.md" in [page.path for page in actual["Start"]]
    assert actual["Reference"][-1] == ("Maps", pages[:1])
    pages.append(Page("new.md", "New", ""))
    with pytest.raises(ValueError, match=r"^docs/README\.md has no entry for new\.md$"):
        kinds.navigation()


def text_of(path: Path) -> str:
    """Markdown of a page or of a notebook, without code."""
    if path.suffix == ".ipynb":
        cells = json.loads(path.read_text("utf-8"))["cells"]
        return "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return repository.FENCE.sub("", path.read_text("utf-8"))


def anchors(path: Path) -> set[str]:
    """Anchors of the headings."""
    titles = re.findall(r"^#+ (.+)$", text_of(path), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
    return {title.replace(" ", "-") for title in plain}


@pytest.mark.parametrize(
    "path",
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *GUIDES, *NOTEBOOKS],
    ids=lambda p: p.name,
)
def test_links_lead_somewhere(path: Path) -> None:
    for _, _, target in repository.LINK.findall(text_of(path)):
        name, _, anchor = target.partition("#")
        if "://" in name:
            continue
        linked = (path.parent / name).resolve() if name else path
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target
