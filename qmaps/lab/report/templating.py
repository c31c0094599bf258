"""Templates of pages, and cells of their sortable tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jinja2

OWN = "qmaps.lab.report"


def template(
    name: str, package: str = OWN, filters: Mapping[str, Callable[..., Any]] | None = None
) -> jinja2.Template:
    """Return ``NAME.html.jinja`` of a package's folder ``templates``.

    Args:
        name: the template's name.
        package: the package; templates missing there come from `qmaps.lab.report`.
        filters: further filters by name.
    """
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(place) for place in (package, OWN)]),
    )
    environment.filters |= {"css": css, **(filters or {})}
    return environment.get_template(f"{name}.html.jinja")


class Cell(NamedTuple):
    """A cell of a sortable table.

    Attributes:
        text: the text in the cell.
        key: the sort key: a number as JavaScript reads it, or text; ``-`` if the value is missing.
        verdict: the class of a verdict, such as ``reproduced-in-part``; empty if it is none.
        href: where the text links to; empty for nowhere.
        after: text behind the link.
    """

    text: str
    key: str
    verdict: str = ""
    href: str = ""
    after: str = ""


def cell(value: Any, key: Any = None) -> Cell:
    """A cell to be sorted by `key`, or by its own text.

    >>> cell("4.25")
    Cell(text='4.25', key='4.25', verdict='', href='', after='')
    """
    return Cell(str(value), str(value if key is None else key))


def judged(verdict: str) -> Cell:
    """A cell with a verdict."""
    return Cell(verdict, verdict, css(verdict))


def css(verdict: str) -> str:
    """The class of a verdict."""
    return verdict.replace(",", "").replace(" ", "-")
