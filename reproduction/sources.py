"""The source files of frames."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
"""The checkout with qmaps and this package."""
SHOWING = ("cli", "figures", "integrations", "lab/report")
"""Packages of qmaps without an effect on frames."""
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
"""Modules of this package for the layout of results only."""
COMPUTING = ("analyses", "speedup", "workloads")
"""Packages of this package with an effect on frames; the others are figures and papers."""


def digest(build: Callable[..., Any]) -> str:
    """Hash of all Python sources with a possible effect on the frames of `build`.

    These are its own module and all of qmaps, except packages for showing frames and the modules of
    other figures and tables. Compiled engines are left out, as they give the reference's bits.
    """
    source = Path(inspect.getfile(build)).read_bytes()
    return hashlib.sha256(source + shared().encode()).hexdigest()


@functools.cache
def shared() -> str:
    """Hash of the sources common to all figures and tables, read once in a process."""
    digest_of_all = hashlib.sha256()
    for path in files():
        content = path.read_bytes()
        digest_of_all.update(
            f"{path.relative_to(ROOT).as_posix()} {len(content)}\n".encode() + content
        )
    return digest_of_all.hexdigest()


def files() -> Iterator[Path]:
    """The sources common to all figures and tables, sorted by name."""
    showing = [ROOT / "qmaps" / name for name in SHOWING]
    for path in sorted((ROOT / "qmaps").rglob("*.py")):
        if not any(map(path.is_relative_to, showing)):
            yield path
    package = ROOT / "reproduction"
    for path in sorted(package.rglob("*.py")):
        if not _lays_out(*path.relative_to(package).parts):
            yield path


def _lays_out(first: str, *tail: str) -> bool:
    """True for modules that draw pages, figures or tables; their names have no underscore."""
    if not tail:
        return first.removesuffix(".py") in PAGES
    return first not in COMPUTING and not tail[-1].startswith("_")
