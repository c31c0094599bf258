"""Names as figures show them: as literal text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from qmaps.errors import printable

LONGEST = 120
"""Most characters of a name; the middle of a longer name is left out."""


def as_text(value: Any) -> Any:
    """Return `value` with every text in it made `literal`; numbers and the rest stay as they are.

    `value` may be a frame, a text, or a mapping, list or tuple of such. Texts of a frame's column
    that differ stay different.
    """
    if isinstance(value, pd.DataFrame):
        shown = value.copy(deep=False)
        for name, column in value.items():
            if _holds_text(column):
                shown[name] = _column(column)
        return shown
    if isinstance(value, str):
        return literal(value)
    if isinstance(value, Mapping):
        return {as_text(name): as_text(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(as_text, value))
    return value


def literal(text: str) -> str:
    r"""Escape a text so that matplotlib shows it as it is: no mathematics, and on one line.

    A text of more than 120 characters loses its middle.

    >>> print(literal("$x$"))
    \$x\$
    """
    shown = printable(text)
    if len(shown) > LONGEST:
        half = (LONGEST - 3) // 2
        shown = f"{shown[:half]}...{shown[-half:]}"
    return shown.replace("$", r"\$")


def _holds_text(column: pd.Series) -> bool:
    return column.dtype == object or isinstance(column.dtype, (pd.StringDtype, pd.CategoricalDtype))


def _column(column: pd.Series) -> pd.Series:
    """The column with its texts literal; long ones that would come out the same get numbers."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return column.cat.rename_categories(_names(column.cat.categories))
    return column.map(_names(column.unique()), na_action="ignore")


def _names(given: Any) -> dict[Any, Any]:
    names: dict[Any, Any] = {}
    taken: set[Any] = set()
    for value in given:
        name = as_text(value)
        if isinstance(value, str):
            number, plain = 1, name
            while name in taken:
                number += 1
                name = f"{plain} ({number})"
            taken.add(name)
        names[value] = name
    return names
