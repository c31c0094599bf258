"""Recommendations on disk."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pandas as pd

from qmaps.analyze.recommend.result import Recommendation
from qmaps.errors import OutputError
from qmaps.storage.files import (
    exists,
    json_text,
    read_frame,
    read_record,
    write_frame,
    write_record,
)
from qmaps.storage.locks import FolderLock

CHOICE, SUMMARY, STATES = "choice.json", "summary.json", "states.json"
PAIRS, TENSORS, CURVES = "pairs.parquet", "tensors.parquet", "curves.parquet"


def write(
    recommendation: Recommendation,
    out: str | os.PathLike[str],
    *,
    curves: pd.DataFrame | None = None,
    states: dict[str, Any] | None = None,
) -> None:
    """Write a recommendation to a folder: the choice, a summary, and both frames.

    ``choice.json`` is removed first and written last: where it is, the other files belong to it.

    Args:
        recommendation: the recommendation.
        out: the folder, created if need be.
        curves: a frame of `qmaps.replay.curves` of the same states.
        states: what tells the states that it is of, for `holds`.

    Raises:
        OutputError: the folder cannot be written, or another process writes to it.
    """
    with FolderLock(out, "recommendation"):
        folder = Path(out)
        for name in (CHOICE, STATES, CURVES):
            (folder / name).unlink(missing_ok=True)
        write_frame(folder / PAIRS, recommendation.pairs)
        write_frame(folder / TENSORS, recommendation.tensors)
        write_record(folder / SUMMARY, recommendation.summary())
        if curves is not None:
            write_frame(folder / CURVES, curves)
        if states is not None:
            write_record(folder / STATES, states)
        recommendation.save(folder / CHOICE)


def holds(out: str | os.PathLike[str], states: dict[str, Any]) -> bool:
    """True if a folder has a whole recommendation for the states that `write` was told.

    Args:
        out: the folder.
        states: what tells the states.
    """
    folder = Path(out)
    if not all(exists(folder / name) for name in (CHOICE, STATES)):
        return False
    try:
        for name in (PAIRS, TENSORS):
            read_frame(folder / name)
        read_record(folder / SUMMARY)
        written: dict[str, Any] = read_record(folder / STATES)
    except OutputError:  # damaged
        return False
    return bool(written == json.loads(json_text(states)))
