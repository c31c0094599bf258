"""The source of the Python standard library as training data."""

from __future__ import annotations

import functools
import hashlib
import sysconfig
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qmaps.errors import BadValueError

EXCLUDED = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib2to3"}
)
"""Folders that not every installation has, or that are not the library itself."""


def is_validation(name: str) -> bool:
    """Whether a file is held out: one in ten, by a hash of its relative path."""
    return hashlib.sha256(name.encode()).digest()[0] < 26


def files(root: Path) -> dict[str, Path]:
    """The library's source files by relative path, sorted."""
    found = {
        path.relative_to(root).as_posix(): path
        for path in root.rglob("*.py")
        if not EXCLUDED & set(path.relative_to(root).parts[:-1])
    }
    return dict(sorted(found.items()))


@functools.lru_cache(maxsize=1)
def load() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """All training bytes and all validation bytes, split by file.

    Raises:
        BadValueError: this Python comes without the source of its library.
    """
    root = Path(sysconfig.get_path("stdlib"))
    train: list[bytes] = []
    validation: list[bytes] = []
    for name, path in files(root).items():
        (validation if is_validation(name) else train).append(path.read_bytes())
    joined = [np.frombuffer(b"\0".join(part), dtype=np.uint8) for part in (train, validation)]
    if min(map(len, joined)) < 100_000:
        raise BadValueError(
            f"the standard library in {str(root)!r} holds {sum(map(len, joined))} bytes of source; "
            "stdlib-lm needs a Python that comes with its library's .py files"
        )
    return joined[0], joined[1]
