"""Cells of a page's tables."""

from __future__ import annotations

from typing import Any, NamedTuple


class Cell(NamedTuple):
    """A cell of a sortable table.

    Attributes:
        text: what is shown.
        key: what the table is sorted by: a number as JavaScript reads it, or text; ``-`` if the
            value is missing.
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
    """A cell that is sorted by `key`, or by its own text.

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
