"""Parts of a sweep in a folder, shards of it, and their rows put together."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from qmaps.errors import BadValueError, OutputError
from qmaps.storage.files import output_folder, read_frame, read_record, write_frame, write_record
from qmaps.sweep.plan import Item, specs_of

RECORD = "sweep.json"
RESULT = "sweep.parquet"


def begin(out: str | os.PathLike[str], items: Sequence[Item]) -> Path:
    """Prepare the folder of a sweep of these items, or go on with the parts of an earlier call.

    Raises:
        OutputError: the folder cannot be written, or holds another sweep or a damaged record.
    """
    folder = output_folder(out)
    parts = output_folder(folder / "parts")
    # Listed before the record is looked for: who writes parts has written the record before.
    earlier_parts = list(parts.glob("*.parquet"))
    if not (folder / RECORD).exists():
        for unknown in earlier_parts:
            unknown.unlink(missing_ok=True)  # other shards may do the same
        description = {
            "sweep": items[0].sweep,
            "specs": specs_of(list(items)),
            "parameters": [item.parameter for item in items],
            "states": [item.states for item in items],
        }
        # Another shard may have written a record since.
        write_record(folder / RECORD, description, replace=False)
    check_same(folder, items[0].sweep)
    return folder


def check_same(out: Path, sweep: str) -> None:
    """Raise unless a folder with a record is of the sweep with this digest.

    Raises:
        OutputError: it is of another one, or the record is damaged.
    """
    if record(out, "out")["sweep"] != sweep:
        raise OutputError(
            f"out={str(out)!r} holds a sweep of other specs or states; delete the folder or give "
            "another one"
        )


def part(folder: Path, number: int) -> Path:
    """The file of an item's rows."""
    return folder / "parts" / f"{number:05d}.parquet"


def read_part(folder: Path, number: int) -> pd.DataFrame | None:
    """The rows of an item by an earlier call; None if there are none, or damaged ones."""
    path = part(folder, number)
    if not path.exists():
        return None
    try:
        return read_frame(path, must_be_sealed=True)
    except OutputError:
        return None


def record(folder: Path, parameter: str) -> dict[str, Any]:
    """Record of a sweep in its folder, which errors call by the name of this parameter."""
    try:
        content = read_record(folder / RECORD)
        sweep, parameters, states = (content[name] for name in ("sweep", "parameters", "states"))
        return {"sweep": str(sweep), "parameters": parameters, "states": states}
    except (OutputError, KeyError):
        raise OutputError(
            f"{parameter}={str(folder)!r} has a damaged {RECORD}; delete the folder or give "
            "another one"
        ) from None


def parse_shard(text: str) -> tuple[int, int]:
    """Parse a shard such as ``"3/64"``, the third of 64.

    Raises:
        BadValueError: `text` is not two whole numbers, or the first is not from 1 to the second.

    >>> parse_shard("3/64")
    (3, 64)
    """
    match = re.fullmatch(r"(\d+)/(\d+)", text, re.ASCII)
    if match is None:
        raise BadValueError(f"shard={text!r} must be K/N, such as 3/64 for the third of 64")
    return int(match[1]), int(match[2])


def shard_of(items: Sequence[Item], shard: tuple[int, int]) -> list[Item]:
    """The items of one shard, in their order: its number, from 1 on, and the number of all.

    The item with the most work goes to the shard with the least so far, then the next, so shards
    are of similar size, and every process divides the same sweep in the same way.

    Raises:
        BadValueError: there is no such shard.
    """
    which, count = shard
    if not 1 <= which <= count:
        raise BadValueError(f"shard={which}/{count} must be from 1/{count} to {count}/{count}")
    shards: list[list[Item]] = [[] for _ in range(count)]
    sizes = [0] * count
    for item in sorted(items, key=lambda item: (-item.work, item.number)):
        smallest = sizes.index(min(sizes))
        shards[smallest].append(item)
        sizes[smallest] += item.work
    return sorted(shards[which - 1], key=lambda item: item.number)


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


def merge(
    folders: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    out: str | os.PathLike[str],
) -> pd.DataFrame:
    """Join the parts of a sweep from several processes.

    Args:
        folders: folders of `qmaps.sweep.run` with ``shard=``, or one; shards may share a
            folder.
        out: the folder for ``sweep.parquet``; it may be one of `folders`.

    Returns:
        The rows of the whole sweep, as one process would have returned them.

    Raises:
        BadValueError: there are no folders.
        OutputError: a folder holds no sweep, they hold shards of different sweeps, `out` holds
            another sweep, or parts are missing or damaged.
    """
    if isinstance(folders, (str, os.PathLike)):
        folders = [folders]
    if not folders:
        raise BadValueError("folders=[] must name at least one folder of a sweep")
    places = [_place(Path(folder)) for folder in folders]
    records = [record(place, "folder") for place in places]
    for place, sweep_record in zip(places, records, strict=True):
        if sweep_record["sweep"] != records[0]["sweep"]:
            raise OutputError(
                f"folder={str(place)!r} holds a shard of another sweep than {str(places[0])!r}; "
                "merge shards of the same states and specs"
            )
    if (Path(out) / RECORD).exists():
        check_same(Path(out), records[0]["sweep"])
    parameters, states = records[0]["parameters"], records[0]["states"]
    frames, missing = [], []
    for number, parameter in enumerate(parameters):
        rows = next(
            (rows for place in places if (rows := read_part(place, number)) is not None), None
        )
        if rows is None:
            missing.append(parameter)
        else:
            frames.append(rows)
    if missing or not frames:
        first = f", the first of {missing[0]!r:.60}" if missing else ""
        raise OutputError(
            f"folder={str(places[0])!r}: {len(missing)} of {len(parameters)} parts are missing or "
            f"damaged{first}; run the shards that are missing and merge again"
        )
    result = joined(frames, states)
    write_frame(output_folder(out) / RESULT, result)
    return result


def _place(folder: Path) -> Path:
    """The folder of a sweep: itself, or ``sweep`` within the folder of a run."""
    for place in (folder, folder / "sweep"):
        if (place / RECORD).exists():
            return place
    raise OutputError(f"folder={str(folder)!r} holds no sweep ({RECORD}); give a folder of shards")
