"""Checks of numbers that callers give."""

from __future__ import annotations

import operator
from typing import Any

from qmaps.errors import BadValueError, shown


def integer(parameter: str, value: Any, minimum: int) -> int:
    """Return an integer that a caller gave as an int.

    NumPy's integers and other types with ``__index__`` are allowed; True and 2.0 are not.

    Args:
        parameter: name of the argument, for the error message.
        value: what the caller gave.
        minimum: smallest value allowed.

    Raises:
        BadValueError: `value` is not an integer, is below `minimum`, or is 2**63 or more.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < minimum:
        raise BadValueError(f"{parameter}={shown(value)} must be an int of at least {minimum}")
    if number >= 2**63:
        raise BadValueError(f"{parameter}={shown(value)} must be below 2**63")
    return number


def require(allowed: bool, parameter: str, value: Any, wanted: str) -> None:
    """Check an argument that a caller gave.

    Args:
        allowed: whether the value is allowed.
        parameter: name of the argument, for the error message.
        value: what the caller gave, for the error message.
        wanted: what is allowed, for the error message: it follows "must be".

    Raises:
        BadValueError: `allowed` is False.
    """
    if not allowed:
        raise BadValueError(f"{parameter}={shown(value)} must be {wanted}")
