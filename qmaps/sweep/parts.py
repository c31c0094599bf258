"""Parts of a sweep in a folder, and their rows put together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from qmaps.storage.files import claim, output_folder
from qmaps.sweep.plan import Item, specs_of

RECORD = "sweep.json"
RESULT = "sweep.parquet"


def begin(out: Path, items: Sequence[Item]) -> None:
    """Prepare the locked folder of a sweep of these items, or go on with the parts of another call.

    Raises:
        OutputError: the folder cannot be written, or holds another sweep or a damaged record.
    """
    parts = output_folder(out / "parts")
    if not (out / RECORD).exists():
        for unknown in parts.glob("*.parquet"):
            unknown.unlink()
    description = {
        "sweep": items[0].sweep,
        "specs": specs_of(list(items)),
        "parameters": [item.parameter for item in items],
        "states": [item.states for item in items],
    }
    claim(out / RECORD, description, "a sweep of other specs or states")


def part(folder: Path, number: int) -> Path:
    """The file of an item's rows."""
    return folder / "parts" / f"{number:05d}.parquet"


def joined(frames: Sequence[pd.DataFrame], states: Sequence[Sequence[str]]) -> pd.DataFrame:
    """The rows of all items: by parameter, then by state with updates last, then by item."""
    # A column without a text in one frame has another dtype there.
    frame = pd.concat(frames, ignore_index=True).infer_objects()
    if frame.empty:
        return frame
    parameter = frame["parameter"].ne(frame["parameter"].shift()).cumsum()
    item_of_row = pd.Series(range(len(frames))).repeat([len(rows) for rows in frames])
    place = [
        states[item].index(state) if state in states[item] else len(states[item])
        for item, state in zip(item_of_row, frame["state"], strict=True)
    ]
    order = pd.DataFrame({"parameter": parameter, "place": place})
    rows = order.sort_values(["parameter", "place"], kind="stable").index
    return frame.loc[rows].reset_index(drop=True)
