"""The code that frames depend on."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
"""The checkout, which contains qmaps and this package."""
SHOWING = ("cli", "figures", "integrations", "lab/report")
"""Packages of qmaps that only show frames, or that call what makes them."""
PAGES = (
    "__main__",
    "catalogue",
    "cell_text",
    "claim",
    "differences",
    "page",
    "pictures",
    "proxy_metrics",
    "results",
    "summary",
    "verdict",
)
"""Modules of this package that only lay out the results of exhibits."""
COMPUTING = ("analyses", "speedup", "workloads")
"""Packages of this package that make frames; the others are figures and papers."""


def digest(build: Callable[..., Any]) -> str:
    """Hash of the Python sources that the frames of `build` can depend on.

    These are its own module and all of qmaps, except packages that only show frames and the
    modules of other exhibits. Compiled engines are left out, because they give the reference's
    bits.
    """
    source = Path(inspect.getfile(build)).read_bytes()
    return hashlib.sha256(source + shared().encode()).hexdigest()


@functools.cache
def shared() -> str:
    """Hash of the sources that every exhibit shares, read once in a process."""
    digest_of_all = hashlib.sha256()
    for path in files():
        content = path.read_bytes()
        digest_of_all.update(
            f"{path.relative_to(ROOT).as_posix()} {len(content)}\n".encode() + content
        )
    return digest_of_all.hexdigest()


def files() -> Iterator[Path]:
    """The sources that every exhibit shares, sorted by name."""
    showing = [ROOT / "qmaps" / name for name in SHOWING]
    for path in sorted((ROOT / "qmaps").rglob("*.py")):
        if not any(map(path.is_relative_to, showing)):
            yield path
    package = ROOT / "reproduction"
    for path in sorted(package.rglob("*.py")):
        if not _lays_out(*path.relative_to(package).parts):
            yield path


def _lays_out(first: str, *rest: str) -> bool:
    """True for modules of pages, of figures, and of exhibits, whose names have no underscore."""
    if not rest:
        return first.removesuffix(".py") in PAGES
    return first not in COMPUTING and not rest[-1].startswith("_")
