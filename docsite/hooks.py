"""MkDocs hooks: pages and navigation."""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # MkDocs runs this file by itself

from docsite.kinds import SECTIONS
from docsite.page import Page

_pages: list[Page] = []


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make the pages, and the navigation from them."""
    sections = {name: make() for name, make in SECTIONS.items()}
    _pages[:] = [page for pages in sections.values() for page in pages]
    config.nav = [
        {name: pages[0].path if len(pages) == 1 else [{escape(p.title): p.path} for p in pages]}
        for name, pages in sections.items()
        if pages
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and what they show."""
    contents: dict[str, bytes | str] = {page.path: page.text for page in _pages}
    for page in _pages:
        contents.update(page.files)
    for path, content in contents.items():
        files.append(File.generated(config, path, content=content))
    return files
