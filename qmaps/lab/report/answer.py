"""What a run's page answers: the recommendation, its alternatives, and its warnings."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from qmaps import maps
from qmaps.algebra.quantizer import quantizer
from qmaps.analyze.recommend.candidates import FULL, LIMITS
from qmaps.analyze.recommend.verdict import cost_of, records
from qmaps.errors import QmapsError
from qmaps.lab.report.table import Cell, cell, judged
from qmaps.storage.files import exists, read_frame, read_record

HALF = 0.5
"""Share of stalled elements, or of outliers in few rows, from which on a tensor is named."""
NAMED = 3
"""Names in a warning; of more tensors only the number is given."""
MANY_ROWS = 40
"""Rows, or columns, from which on 5 % of them are few."""


def answer(folder: Path, naming: str = "") -> dict[str, Any] | None:
    """What the first screen shows of ``folder/recommend``; None without a recommendation.

    Args:
        folder: the run folder.
        naming: where the names of a checkpoint's parameters are from, as in
            `qmaps.capture.CapturedStates`.

    Raises:
        OutputError: a file is damaged.
    """
    own = folder / "recommend"
    if not exists(own / "choice.json") or not exists(own / "summary.json"):
        return None
    summary = read_record(own / "summary.json")
    pairs, tensors = (read_frame(own / f"{name}.parquet") for name in ("pairs", "tensors"))
    profiles = _optional(folder / "frames" / "profiles.parquet")
    chosen = tensors[tensors["chosen"]]
    counts = chosen.groupby("quantizer")["numel"].agg(["sum", "size"]).sort_values("sum")
    return {
        **summary,
        "main": counts.index[-1],
        "others": int(counts["size"].iloc[:-1].sum()),
        "tensors": len(chosen),
        "size": size(summary["nbytes"]),
        "full_size": size(summary["full_nbytes"]),
        "saved": saved(summary["nbytes"], summary["full_nbytes"]),
        "widths": list(_widths(summary, pairs)),
        "warnings": [*_of_names(naming), *_of_choice(summary, chosen), *_of_states(profiles)],
        "candidates": [_candidate(row) for row in records(pairs)],
        "step": int(tensors["step"].iloc[0]),
        "steps": int(tensors["steps"].max()),
        "share": float(tensors["replayed"].sum() / tensors["numel"].sum()),
        "maps": list(_maps(pairs["quantizer"])),
    }


def _optional(path: Path) -> pd.DataFrame | None:
    return read_frame(path) if exists(path) else None


def size(nbytes: float) -> str:
    """Bytes in a unit that suits them.

    >>> size(3_500_000), size(900), size(56e9)
    ('3.34 MiB', '900 bytes', '52.2 GiB')
    """
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.3g} {unit}"
    return f"{nbytes:.0f} bytes"


def saved(nbytes: float, full: float) -> str:
    """What is saved of `full`, in percent."""
    return f"{1 - nbytes / full:.0%}"


def _widths(summary: Mapping[str, Any], pairs: pd.DataFrame) -> Iterable[dict[str, Any]]:
    """The best single pair at each width, if it is another than at the width before."""
    rows = {row["quantizer"]: row for row in records(pairs)}
    before = None
    for limit in map(str, LIMITS):
        spec = summary["best"].get(limit)
        if spec is None or spec == before:
            continue
        before, row = spec, rows[spec]
        yield {
            "limit": limit,
            "spec": spec,
            "preset": row["preset"],
            "bits": f"{row['bits_per_element']:.2f}",
            "verdict": row["verdict"],
            "reason": row["reason"],
            "size": size(row["nbytes"]),
            "saved": saved(row["nbytes"], summary["full_nbytes"]),
            "code": summary["singles"][limit],
        }


def _candidate(row: Mapping[str, Any]) -> list[Cell]:
    cost = cost_of(row)
    note = " (diagnostic)" * bool(row["diagnostic"])
    return [
        cell(row["quantizer"] + note),
        cell(row["preset"] or "-"),
        cell(f"{row['bits_per_element']:.2f}"),
        judged(row["verdict"]),
        cell(row["reason"]),
        Cell("-", "-") if math.isnan(cost) else cell(f"{cost:.2g}", cost),
        cell(size(row["nbytes"]), row["nbytes"]),
    ]


def _of_names(naming: str) -> Iterable[str]:
    if naming.startswith("numbers"):
        yield (
            f"Parameters have {naming}. Overrides fit the model only under its own names: give "
            "them with --names."
        )


def _of_choice(summary: Mapping[str, Any], chosen: pd.DataFrame) -> Iterable[str]:
    """Warnings about the replay of the choice."""
    if summary["gradients"] != "recorded":
        yield (
            "Gradients were not recorded, so they were simulated from the moments: verdicts hold "
            "as far as gradients are independent from step to step. Record some with "
            "StateRecorder(..., gradients=60)."
        )
    zeroed = chosen.loc[chosen["zero_point_share"] > 0, "parameter"]
    if len(zeroed):
        yield f"Zero points: second moments become 0 under other first moments in {_names(zeroed)}."
    for moment, name in (("first", "first"), ("second", "second")):
        column = f"stalled_share_{moment}"
        stalled = chosen.loc[chosen[column] > HALF, "parameter"]
        if len(stalled):
            yield (
                f"Stalled states: most of the {name} moments that should have moved by a code did "
                f"not move in {_names(stalled)}."
            )
    kept = chosen.loc[chosen["quantizer"] == FULL.spec, "parameter"]
    if len(kept):
        yield f"States stay in 32 bits in {_names(kept)}."


def _of_states(profiles: pd.DataFrame | None) -> Iterable[str]:
    """Warnings about the states themselves."""
    if profiles is None:
        return
    second = profiles[profiles["state"] == "exp_avg_sq"]
    rows, cols = (second["shape"].map(lambda shape, at=at: _extent(shape, at)) for at in (0, 1))
    for lines, many, share in (("rows", rows, "in_rows"), ("columns", cols, "in_cols")):
        found = second.loc[(second[share] > HALF) & (many >= MANY_ROWS), "parameter"]
        if len(found):
            yield (
                f"Outlier {lines}: more than half of the largest 1 % of the second moments lie in "
                f"5 % of the {lines} of {_names(found)}. A scale that these share with others "
                "makes others coarse."
            )
    elements = second["counts"].map(sum) + second["zeros"]
    dead = second.loc[second["zeros"] > 0.01 * elements, "parameter"]
    if len(dead):
        yield (
            f"More than 1 % of the second moments are 0 in {_names(dead)}: no gradient reached "
            "these elements."
        )


def _extent(shape: Sequence[int], axis: int) -> int:
    if len(shape) < 2:
        return 0
    return int(shape[0] if axis == 0 else math.prod(shape[1:]))


def _names(names: Iterable[str]) -> str:
    listed = list(names)
    if len(listed) > NAMED:
        return f"{', '.join(listed[:NAMED])} and {len(listed) - NAMED} more tensors"
    return ", ".join(listed)


def _maps(specs: Iterable[str]) -> Iterable[list[Cell]]:
    """Each map of these pairs: what it is, and its names in the papers."""
    found = dict.fromkeys(
        name for pair in specs for spec in pair.split(" + ") if (name := _map_of(spec))
    )
    for name in sorted(found, key=str.lower):
        known = maps.REGISTRY[name]
        own = known.__module__.startswith("qmaps.")  # whose modules say what papers call the map
        text = (sys.modules[known.__module__].__doc__ if own else known.__doc__) or ""
        source = " ".join((known.__doc__ or "").partition("Source:")[2].split()).rstrip(".")
        yield [cell(name), cell(" ".join(text.split("\n\n")[0].split())), cell(source or "-")]


def _map_of(spec: str) -> str:
    try:
        name = quantizer(spec).map.spec_name
    except QmapsError:  # 32-bit, or a codebook of the caller's own
        return ""
    return name if name in maps.REGISTRY else ""
