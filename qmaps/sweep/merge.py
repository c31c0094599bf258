"""Shards of a sweep, and their parts put together."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from qmaps.errors import BadValueError, OutputError
from qmaps.storage.files import output_folder, write_frame
from qmaps.sweep.parts import RECORD, RESULT, check_same, read_part, record
from qmaps.sweep.plan import Item


def parse_shard(text: str) -> tuple[int, int]:
    """The shard that ``"3/64"`` names: the third of 64.

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
    """The items of one shard, in their order.

    The item with the most work goes to the shard with the least so far, then the next, so shards
    are of similar size, and every process that divides the same sweep divides it in the same way.

    Args:
        items: all items of the sweep.
        shard: which one, from 1 on, and how many there are.

    Raises:
        BadValueError: there is no such shard.
    """
    which, count = shard
    if not 1 <= which <= count:
        raise BadValueError(f"shard={which}/{count} must be from 1/{count} to {count}/{count}")
    shards: list[list[Item]] = [[] for _ in range(count)]
    sizes = [0] * count
    for item in sorted(items, key=lambda item: (-item.work, item.number)):
        least = sizes.index(min(sizes))
        shards[least].append(item)
        sizes[least] += item.work
    return sorted(shards[which - 1], key=lambda item: item.number)


def joined(frames: Sequence[pd.DataFrame], states: Sequence[Sequence[str]]) -> pd.DataFrame:
    """The rows of all items: by parameter, then by state with updates last, then by item.

    Args:
        frames: the rows of each item, in the order of the items, of which there is at least one.
        states: names of the states of each item.
    """
    # A column without a text in one frame has another dtype there.
    frame = pd.concat(frames, ignore_index=True).infer_objects()
    if frame.empty:
        return frame
    parameter = frame["parameter"].ne(frame["parameter"].shift()).cumsum()
    own = pd.Series(range(len(frames))).repeat([len(rows) for rows in frames])
    place = [
        states[item].index(state) if state in states[item] else len(states[item])
        for item, state in zip(own, frame["state"], strict=True)
    ]
    order = pd.DataFrame({"parameter": parameter, "place": place})
    rows = order.sort_values(["parameter", "place"], kind="stable").index
    return frame.loc[rows].reset_index(drop=True)


def merge(
    folders: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    out: str | os.PathLike[str],
) -> pd.DataFrame:
    """Put the parts of a sweep together that several processes measured.

    Args:
        folders: folders that `qmaps.sweep.run` wrote with ``shard=``, or one; shards may share a
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
    for place, about in zip(places, records, strict=True):
        if about["sweep"] != records[0]["sweep"]:
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
