"""MkDocs hooks: pages and navigation."""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # MkDocs runs this file by itself

from docsite.kinds import Section, navigation
from docsite.page import Page

_pages: list[Page] = []


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make the pages, and the navigation from them."""
    sections = navigation()
    _pages[:] = [page for section in sections.values() for page in _pages_of(section)]
    config.nav = [{name: _entries(section)} for name, section in sections.items()]
    return config


def _pages_of(section: Section) -> list[Page]:
    return [
        page for entry in section for page in ([entry] if isinstance(entry, Page) else entry[1])
    ]


def _entries(section: Section) -> list[dict[str, Any]]:
    return [
        {escape(entry.title): entry.path}
        if isinstance(entry, Page)
        else {entry[0]: [{escape(page.title): page.path} for page in entry[1]]}
        for entry in section
    ]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and their files."""
    contents: dict[str, bytes | str] = {page.path: page.text for page in _pages}
    for page in _pages:
        contents.update(page.files)
    for path, content in contents.items():
        files.append(File.generated(config, path, content=content))
    return files
