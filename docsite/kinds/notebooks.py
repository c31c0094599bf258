"""The notebooks, with the outputs of their last run by ``make notebooks``."""

from __future__ import annotations

from pathlib import Path

from docsite.kinds.repository import consoles, place_of, relinked
from docsite.page import ROOT, Page

SOURCES = ROOT / "notebooks"
RUN = ROOT / "build" / "notebooks"
"""Where ``make notebooks`` leaves them with their outputs."""


def pages() -> list[Page]:
    """A page for each notebook, without outputs where it has not been run."""
    return [_page(path) for path in sorted(SOURCES.glob("*.ipynb"))]


def _page(path: Path) -> Page:
    from nbconvert import MarkdownExporter  # the rest of the pages needs none

    place = place_of(path)
    run = RUN / path.name
    exporter = MarkdownExporter()
    exporter.exclude_input_prompt = True
    text, resources = exporter.from_filename(str(run if run.exists() else path))
    linked, files = relinked(text, path, place)
    stem = place.removesuffix(".md")
    for name, content in resources["outputs"].items():
        linked = linked.replace(f"({name})", f"({Path(stem).name}-{name})")
        files[f"{stem}-{name}"] = content
    title = next(line for line in text.splitlines() if line.startswith("# ")).removeprefix("# ")
    return Page(place, title, consoles(linked), files)
