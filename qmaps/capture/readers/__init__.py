"""Checkpoints of other packages: one file per format; every `Reader` in this package is known."""

from __future__ import annotations

from pathlib import Path

from qmaps.capture.readers.base import Reader, StateDict
from qmaps.registry import declared

__all__ = ["READERS", "Reader", "StateDict", "reader_of"]

_classes: list[type[Reader]] = declared(__name__, list(__path__), Reader)
READERS: dict[str, Reader] = {
    cls.name: cls() for cls in sorted(_classes, key=lambda cls: (cls.asked, cls.name))
}
"""By name; a checkpoint is of the first that detects it."""


def reader_of(path: Path) -> Reader | None:
    """The reader of a file or folder; None if it is of no format here."""
    return next((reader for reader in READERS.values() if reader.holder(path)), None)
