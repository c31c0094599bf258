"""The notebooks, with their committed outputs."""

from __future__ import annotations

from pathlib import Path

from docsite.kinds.repository import consoles, place_of, relinked
from docsite.outputs import SOURCES
from docsite.page import Page


def pages() -> list[Page]:
    """A page for each notebook."""
    return [_page(path) for path in sorted(SOURCES.glob("*.ipynb"))]


def _page(path: Path) -> Page:
    from nbconvert import MarkdownExporter  # the rest of the pages needs none

    place = place_of(path)
    exporter = MarkdownExporter()
    exporter.exclude_input_prompt = True
    text, resources = exporter.from_filename(str(path))
    linked, files = relinked(text, path, place)
    stem = place.removesuffix(".md")
    for name, content in resources["outputs"].items():
        linked = linked.replace(f"({name})", f"({Path(stem).name}-{name})")
        files[f"{stem}-{name}"] = content
    title = next(line for line in text.splitlines() if line.startswith("# ")).removeprefix("# ")
    return Page(place, title, consoles(linked), files)
