"""One file per kind of page; here their order in the navigation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from docsite.kinds import figures, maps, normalizers, notebooks, optimizers, reference, repository
from docsite.page import Page

SECTIONS: Mapping[str, Callable[[], list[Page]]] = {
    "Home": repository.home,
    "How to": repository.guides,
    "Notebooks": notebooks.pages,
    maps.TITLE: maps.pages,
    normalizers.TITLE: normalizers.pages,
    optimizers.TITLE: optimizers.pages,
    figures.TITLE: figures.pages,
    "Reports": repository.reports,
    reference.TITLE: reference.pages,
    "Project": repository.project,
}
"""What makes the pages of each section."""
