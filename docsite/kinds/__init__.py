"""Navigation of the site; each kind of page has a file in this package.

Guides and notebooks are on the shelves of ``docs/README.md``; the other kinds are sections of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from docsite.kinds import figures, maps, normalizers, notebooks, optimizers, reference, repository
from docsite.page import Page

SECTIONS: Mapping[str, Mapping[str, Callable[[], list[Page]]]] = {
    "Reference": {
        maps.TITLE: maps.pages,
        normalizers.TITLE: normalizers.pages,
        optimizers.TITLE: optimizers.pages,
        figures.TITLE: figures.pages,
        reference.TITLE: reference.pages,
    },
    "Background": {"Reports": repository.reports, "Project": repository.project},
}
"""Functions that return the pages of each section, by shelf."""

Section = list[Page | tuple[str, list[Page]]]
"""Pages, and subsections as title and pages."""


def navigation() -> dict[str, Section]:
    """Every page of the site, by shelf; the first has the README and the contents."""
    pages = {page.path: page for page in (*repository.guides(), *notebooks.pages())}
    home, contents = *repository.home(), pages.pop(repository.CONTENTS)
    arranged: dict[str, Section] = {"Home": [home, contents]}
    for shelf, places in repository.shelves().items():
        arranged[shelf] = [pages.pop(place) for place in places if place in pages]
        arranged[shelf] += [(name, make()) for name, make in SECTIONS.get(shelf, {}).items()]
    if pages:
        raise ValueError(f"docs/README.md has no entry for {', '.join(sorted(pages))}")
    return arranged
