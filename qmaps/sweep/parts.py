"""The folder of a sweep: what it is of, and a file of rows for each item."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from qmaps.errors import OutputError
from qmaps.storage.files import output_folder, read_frame, read_record, write_frame, write_record
from qmaps.sweep.plan import Item, specs_of

RECORD = "sweep.json"
RESULT = "sweep.parquet"


class Parts:
    """The parts of one sweep in a folder.

    Args:
        out: the folder, created if need be.
        items: all items of the sweep, with its digest.

    Raises:
        OutputError: the folder cannot be written, or holds another sweep or a damaged record.
    """

    def __init__(self, out: str | os.PathLike[str], items: Sequence[Item]) -> None:
        self.folder = output_folder(out)
        parts = output_folder(self.folder / "parts")
        # Listed before the record is looked for: who writes parts has written the record before.
        found = list(parts.glob("*.parquet"))
        if (self.folder / RECORD).exists():
            check_same(self.folder, items[0].sweep)
            return
        for unknown in found:
            unknown.unlink(missing_ok=True)  # other shards may do the same
        about = {
            "sweep": items[0].sweep,
            "specs": specs_of(list(items)),
            "parameters": [item.parameter for item in items],
            "states": [item.states for item in items],
        }
        # Another shard may have written a record since.
        write_record(self.folder / RECORD, about, replace=False)
        check_same(self.folder, items[0].sweep)

    def kept(self, number: int) -> pd.DataFrame | None:
        """The rows that an earlier call measured; None if there are none, or damaged ones."""
        return read_part(self.folder, number)

    def write(self, number: int, frame: pd.DataFrame) -> None:
        """Write the rows of an item."""
        write_frame(part(self.folder, number), frame)

    def finish(self, frame: pd.DataFrame) -> None:
        """Write the rows of all items."""
        write_frame(self.folder / RESULT, frame)


def check_same(out: Path, sweep: str) -> None:
    """Raise unless a folder with a record is of the sweep with this digest.

    Raises:
        OutputError: it is of another one, or the record is damaged.
    """
    if record(out, "out")["sweep"] != sweep:
        raise OutputError(
            f"out={str(out)!r} holds a sweep of other specs or states, or one that was divided for "
            "another memory; delete the folder or give another one"
        )


def part(folder: Path, number: int) -> Path:
    """The file of an item's rows."""
    return folder / "parts" / f"{number:05d}.parquet"


def read_part(folder: Path, number: int) -> pd.DataFrame | None:
    """The rows of an item; None if there are none, or damaged ones."""
    path = part(folder, number)
    if not path.exists():
        return None
    try:
        return read_frame(path, must_be_sealed=True)
    except OutputError:
        return None


def record(folder: Path, parameter: str) -> dict[str, Any]:
    """Record of a sweep in its folder.

    Args:
        folder: the folder of a sweep.
        parameter: the name of the folder in error messages.

    Raises:
        OutputError: the record is damaged.
    """
    try:
        found = read_record(folder / RECORD)
        sweep, parameters, states = (found[name] for name in ("sweep", "parameters", "states"))
        return {"sweep": str(sweep), "parameters": parameters, "states": states}
    except (OutputError, KeyError):
        raise OutputError(
            f"{parameter}={str(folder)!r} has a damaged {RECORD}; delete the folder or give "
            "another one"
        ) from None
