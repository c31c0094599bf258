"""Files written atomically: tensors, checkpoints, locks, checksums."""

from __future__ import annotations

from qmaps.distribution import version

__version__ = version()
