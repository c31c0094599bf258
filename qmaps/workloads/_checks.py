"""Checks of numbers that callers give."""

from __future__ import annotations

import operator
from typing import Any

from qmaps.errors import BadValueError


def integer(parameter: str, value: Any, least: int) -> int:
    """`value` as an int of at least `least`; NumPy's ints will do, True and 2.0 will not.

    Raises:
        BadValueError: it is not one.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
        raise BadValueError(f"{parameter}={value!r} must be an int of at least {least}")
    return operator.index(value)


def require(allowed: bool, parameter: str, value: Any, wanted: str) -> None:
    """Raise BadValueError unless `allowed`; `wanted` says what is."""
    if not allowed:
        raise BadValueError(f"{parameter}={value!r} must be {wanted}")
