"""Checks of numbers that callers give."""

from __future__ import annotations

import operator
from typing import Any

from qmaps.errors import BadValueError, shown


def integer(parameter: str, value: Any, least: int) -> int:
    """`value` as an int of at least `least`; NumPy's ints will do, True and 2.0 will not.

    Raises:
        BadValueError: it is not one.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise BadValueError(f"{parameter}={shown(value)} must be an int of at least {least}")
    if number >= 2**63:
        raise BadValueError(f"{parameter}={shown(value)} must be below 2**63")
    return number


def require(allowed: bool, parameter: str, value: Any, wanted: str) -> None:
    """Raise BadValueError unless `allowed`; `wanted` says what is."""
    if not allowed:
        raise BadValueError(f"{parameter}={shown(value)} must be {wanted}")
