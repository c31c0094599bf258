"""Files written atomically: tensors, checkpoints, locks, checksums."""

from __future__ import annotations

from importlib import metadata

try:
    __version__ = metadata.version("qmaps")
except metadata.PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"
