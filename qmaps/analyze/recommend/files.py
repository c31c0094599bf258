"""Recommendations on disk."""

from __future__ import annotations

import os
from pathlib import Path

from qmaps.analyze.recommend.result import Recommendation
from qmaps.storage.files import write_frame
from qmaps.storage.locks import FolderLock

CHOICE, PAIRS, TENSORS = "choice.json", "pairs.parquet", "tensors.parquet"


def write(found: Recommendation, out: str | os.PathLike[str]) -> None:
    """Write a recommendation to a folder: the choice, and the frames of pairs and of tensors.

    ``choice.json`` is removed first and written last: where it is, the other files belong to it.

    Args:
        found: the recommendation.
        out: the folder, created if need be.

    Raises:
        OutputError: the folder cannot be written, or another process writes to it.
    """
    with FolderLock(out, "recommendation"):
        folder = Path(out)
        (folder / CHOICE).unlink(missing_ok=True)
        write_frame(folder / PAIRS, found.pairs)
        write_frame(folder / TENSORS, found.tensors)
        found.save(folder / CHOICE)
