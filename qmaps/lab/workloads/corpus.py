"""The source of the Python standard library as training data."""

from __future__ import annotations

import functools
import hashlib
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qmaps.errors import BadValueError

EXCLUDED = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib2to3"}
)
"""Folders that not every installation has, or that are not the library itself."""

LEAST = 100_000
"""Bytes of source that each split needs at least; a full library has some ten million."""


@dataclass(frozen=True)
class Corpus:
    """Bytes of source, split by file.

    Attributes:
        train: about nine files in ten, joined in the order of their paths with a zero byte
            between two; uint8, 1-D.
        validation: the other files, joined in the same way.
        digest: a short hash of both.
    """

    train: NDArray[np.uint8]
    validation: NDArray[np.uint8]
    digest: str


def is_validation(name: str) -> bool:
    """True if a file is held out: one in ten, by a hash of its relative path."""
    return hashlib.sha256(name.encode()).digest()[0] < 26


def files(root: Path) -> dict[str, Path]:
    """The library's source files by relative path, sorted."""
    files = {}
    for folder, below, names in os.walk(root):
        # Pruned, not filtered: site-packages may hold a hundred times the library.
        below[:] = [name for name in below if name not in EXCLUDED]
        for name in names:
            if name.endswith(".py"):
                path = Path(folder, name)
                files[path.relative_to(root).as_posix()] = path
    return dict(sorted(files.items()))


@functools.lru_cache(maxsize=1)
def load() -> Corpus:
    """All source of this Python's library, read once per process.

    Raises:
        BadValueError: this Python comes without the source of its library.
    """
    root = Path(sysconfig.get_path("stdlib"))
    parts: dict[bool, list[bytes]] = {False: [], True: []}
    for name, path in files(root).items():
        parts[is_validation(name)].append(path.read_bytes())
    # A zero byte, which source cannot hold, tells the model where a file ends.
    train, validation = (b"\0".join(parts[held_out]) for held_out in (False, True))
    if min(len(train), len(validation)) < LEAST:
        raise BadValueError(
            f"the standard library in {str(root)!r} holds {len(train) + len(validation)} bytes of "
            "source code, which is too little; stdlib-lm needs a Python that is installed with "
            "the .py files of its library"
        )
    digest = hashlib.sha256(train + b"\0\0" + validation).hexdigest()[:16]
    return Corpus(np.frombuffer(train, np.uint8), np.frombuffer(validation, np.uint8), digest)
