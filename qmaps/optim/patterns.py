"""Overrides by parameter name, written as few patterns of names."""

from __future__ import annotations

import glob
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from fnmatch import translate
from typing import TypeVar

V = TypeVar("V", bound=Hashable)


def grouped(overrides: Mapping[str, V], names: Iterable[str]) -> dict[str, V]:
    """Write overrides of single parameters as patterns of names.

    A pattern matches parameters with one and the same value and no other name, so the order of the
    patterns does not matter. It replaces one or more parts of a dotted name by ``*``, or the last
    digit of a numbered part by the digits that occur, as in ``layers.[03].weight``. A parameter
    that shares no such pattern with another one gets its own name, escaped.

    Args:
        overrides: a value by parameter name.
        names: the names of all parameters, those without a value included.

    Returns:
        A value by pattern, for `fnmatch.fnmatchcase`. Patterns that match more parameters come
        first among those of a value; values have the order of `overrides`.

    >>> names = [f"layers.{n}.{part}" for n in range(4) for part in ("weight", "bias")]
    >>> grouped({name: 8 for name in names if name.endswith("weight")}, names)
    {'layers.*.weight': 8}
    >>> grouped({"layers.0.weight": 4, "layers.3.weight": 4}, names)
    {'layers.[03].weight': 4}
    """
    every = {*names, *overrides}
    by_value: dict[V, set[str]] = {}
    for name, value in overrides.items():
        by_value.setdefault(value, set()).add(name)
    return {
        pattern: value for value, own in by_value.items() for pattern in _cover(own, every - own)
    }


def _cover(own: set[str], others: set[str]) -> Iterator[str]:
    """Patterns that together match each of `own`, and none of `others`; the largest first."""
    found: dict[tuple[bool, str], set[str]] = {}
    for name in sorted(own):
        for star in _stars(name):
            found.setdefault((True, star), set()).add(name)
        for digits in _digits(name, own):
            found.setdefault((False, digits), set()).add(name)
    able = {pattern: members for pattern, members in found.items() if len(members) > 1}
    left = set(own)
    while able:
        # Of those that match as many: "*" before digits, then the longest, which says most.
        best = max(able, key=lambda key: (len(able[key]), key[0], len(key[1]), key[1]))
        members = able.pop(best)
        if any(map(re.compile(translate(best[1])).match, others)):
            continue
        yield best[1]
        left -= members
        able = {key: rest for key, kept in able.items() if len(rest := kept - members) > 1}
    for name in sorted(left):
        yield glob.escape(name)


def _stars(name: str) -> Iterator[str]:
    """The name with each run of its parts replaced by ``*``."""
    parts = [glob.escape(part) for part in name.split(".")]
    for start in range(len(parts)):
        for end in range(start + 1, len(parts) + 1):
            yield ".".join([*parts[:start], "*", *parts[end:]])


def _digits(name: str, own: set[str]) -> Iterator[str]:
    """The name with the last digit of each number in it replaced by those that occur in `own`."""
    for number in re.finditer(r"(?<![^.])[0-9]*([0-9])(?![^.])", name):
        before, after = name[: number.start(1)], name[number.end(1) :]
        found = [digit for digit in "0123456789" if before + digit + after in own]
        whole = len(found) > 2 and int(found[-1]) - int(found[0]) == len(found) - 1
        shown = f"{found[0]}-{found[-1]}" if whole else "".join(found)
        yield f"{glob.escape(before)}[{shown}]{glob.escape(after)}"
