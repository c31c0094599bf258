"""Pages from Markdown files of the repository: the README, how-tos and reports."""

from __future__ import annotations

import os
import re
from pathlib import Path

from docsite.page import ROOT, Page

RENAMED = {
    "README.md": "index.md",
    "docs/README.md": "contents.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
CONTENTS = RENAMED["docs/README.md"]
"""The page of the shelves."""
SHOWN = {".csv", ".html", ".json", ".png", ".svg"}
"""Endings of linked files to copy into the site."""
LINK = re.compile(r"(!?)\[([^\]\n]*(?:\n[^\]\n]*)?)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def home() -> list[Page]:
    """The README."""
    return [_page(ROOT / "README.md")]


def guides() -> list[Page]:
    """Pages of ``docs/``, by title."""
    guide_pages = [_page(path) for path in (ROOT / "docs").rglob("*.md")]
    return sorted(guide_pages, key=lambda page: page.title.lower())


def shelves() -> dict[str, list[str]]:
    """Paths in the site of the pages on each shelf of ``docs/README.md``, in its order."""
    index = ROOT / "docs" / "README.md"
    _, *parts = re.split(r"^## ", index.read_text("utf-8"), flags=re.MULTILINE)
    return {
        part.partition("\n")[0]: [
            place_of((index.parent / target).resolve())
            for target in re.findall(r"^- \[[^\]]+\]\(([^)]+)\)", part, re.MULTILINE)
        ]
        for part in parts
    }


def reports() -> list[Page]:
    """Pages of ``reports/``, the index first."""
    folder = ROOT / "reports"
    index = folder / "README.md"
    return [_page(index), *(_page(path) for path in sorted(folder.rglob("*.md")) if path != index)]


def project() -> list[Page]:
    """Contributing, changes and security."""
    names = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
    return [_page(ROOT / name) for name in names]


def _page(path: Path) -> Page:
    text = path.read_text("utf-8")
    title = re.search(r"^# +(.+)$", text, re.MULTILINE)
    place = place_of(path)
    name = path.stem if title is None else title[1].replace("`", "")
    linked, files = relinked(text, path, place)
    return Page(place, name, consoles(linked), files)


def place_of(path: Path) -> str:
    """Path in the site of a file of the repository."""
    name = path.relative_to(ROOT).as_posix()
    if path.suffix == ".ipynb":
        name = f"{name.removesuffix('.ipynb')}.md"
    return RENAMED.get(name, name.removeprefix("docs/"))


def relinked(text: str, path: Path, place: str) -> tuple[str, dict[str, bytes]]:
    """Return `text` with the links between files rewritten as links between pages.

    Returns the files for the linked pages too. A link to source code, without a page of its own,
    becomes the path. A broken link is left alone, and the build fails.
    """
    files: dict[str, bytes] = {}

    def link(match: re.Match[str]) -> str:
        shown, label, target = match.groups()
        name, _, anchor = target.partition("#")
        if not name or "://" in name or name.startswith("mailto:"):
            return match[0]
        file = (path.parent / name).resolve()
        if file.is_dir() and file.is_relative_to(ROOT):
            return label  # a folder has no page
        if not file.is_relative_to(ROOT) or not file.is_file():
            return match[0]
        if file.suffix not in {".md", ".ipynb", *SHOWN}:
            return f"{label} (`{file.relative_to(ROOT).as_posix()}`)"
        if file.suffix == ".md" and not _has_page(file):
            return label
        if file.suffix in SHOWN:
            files[place_of(file)] = file.read_bytes()
        to = os.path.relpath(place_of(file), Path(place).parent)
        return f"{shown}[{label}]({to}{'#' if anchor else ''}{anchor})"

    pieces = []
    end = 0
    for fence in FENCE.finditer(text):
        pieces += [LINK.sub(link, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*pieces, LINK.sub(link, text[end:])]), files


def _has_page(path: Path) -> bool:
    name = path.relative_to(ROOT).as_posix()
    return name in RENAMED or name.startswith(("docs/", "reports/"))


def consoles(text: str) -> str:
    """`text` with Python sessions marked as ``pycon``, for syntax colours."""
    return re.sub(r"^```python\n(?=>>>)", "```pycon\n", text, flags=re.MULTILINE)
