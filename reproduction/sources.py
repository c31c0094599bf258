"""The code that frames depend on."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import qmaps

SHOWING = ("cli", "figures", "capture/integrations", "lab/report")
"""Packages of qmaps that only show frames, or that call what makes them."""
PAGES = ("catalogue", "page", "pictures", "results", "stand_ins", "summary", "verdict", "words")
"""Modules of this package that only lay out what exhibits return."""


def digest(build: Callable[..., Any]) -> str:
    """Hash of the Python sources that the frames of `build` can depend on.

    These are its own module and all of qmaps but what only shows frames and the modules of other
    exhibits. Compiled engines are left out, for they give the reference's bits.
    """
    own = Path(inspect.getfile(build)).read_bytes()
    return hashlib.sha256(own + shared().encode()).hexdigest()


@functools.cache
def shared() -> str:
    """Hash of the sources that every exhibit shares, read once in a process."""
    found = hashlib.sha256()
    for path in files():
        content = path.read_bytes()
        found.update(f"{_name(path)} {len(content)}\n".encode() + content)
    return found.hexdigest()


def files() -> Iterator[Path]:
    """Those sources, sorted by name."""
    package = Path(qmaps.__file__).parent
    showing = [package / name for name in SHOWING]
    for path in sorted(package.rglob("*.py")):
        if not any(map(path.is_relative_to, showing)):
            yield path
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        if not _lays_out(*path.relative_to(Path(__file__).parent).parts):
            yield path


def _name(path: Path) -> str:
    """``qmaps/maps/de.py``, wherever the packages lie."""
    roots = Path(qmaps.__file__).parents[1], Path(__file__).parents[1]
    root = next(root for root in roots if path.is_relative_to(root))
    return path.relative_to(root).as_posix()


def _lays_out(first: str, *rest: str) -> bool:
    """Whether a module of this package is a page's, or an exhibit's (which have no underscore)."""
    return not rest[-1].startswith("_") if rest else first.removesuffix(".py") in PAGES
