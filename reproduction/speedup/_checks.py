"""Checks of descriptions read from files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from qmaps.errors import BadTypeError, BadValueError


def number(name: str, value: object, *, minimum: float = 0.0, above: bool = False) -> float:
    """`value` as a float, checked to be finite and in range.

    Args:
        name: the name of the value in error messages.
        value: an int or float.
        minimum: the lower bound.
        above: whether the bound itself is refused.

    Raises:
        BadTypeError: `value` is not a number.
        BadValueError: `value` is not finite, or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadTypeError(f"{name}={value!r} must be a number")
    if not math.isfinite(value) or value < minimum or (above and value == minimum):
        bound = "above" if above else "of at least"
        raise BadValueError(f"{name}={value!r} must be a finite number {bound} {minimum:g}")
    return float(value)


def count(name: str, value: object) -> int:
    """`value` as an int of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadTypeError(f"{name}={value!r} must be an int")
    if value < 1:
        raise BadValueError(f"{name}={value!r} must be at least 1")
    return value


def known(kind: type[Any], data: object, where: str) -> dict[str, Any]:
    """`data` as a dict, checked to hold fields of a dataclass and nothing else.

    Args:
        kind: the dataclass.
        data: a mapping by names of fields; fields may be missing.
        where: the name of `data` in error messages.

    Raises:
        BadTypeError: `data` is not a mapping.
        BadValueError: a key is not the name of a field.
    """
    names = [field.name for field in fields(kind)]
    if not isinstance(data, Mapping):
        raise BadTypeError(f"{where}={data!r} must be a dict with the keys {', '.join(names)}")
    for key in data:
        if key not in names:
            raise BadValueError(f"{where} has the key {key!r}; allowed are {', '.join(names)}")
    return dict(data)
