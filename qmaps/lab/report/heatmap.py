"""The heatmap of tensors and pairs of quantizers, and the card behind each of its rows."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from qmaps.analyze.limits import FULL
from qmaps.analyze.recommend.verdict import CLEAN, UNPROVEN, UNSAFE, cost_of, dangerous
from qmaps.storage.files import exists, read_frame, records
from qmaps.storage.units import bits, size

TIMES = " \N{MULTIPLICATION SIGN} "
STEPS = (CLEAN, 0.003, 0.01, 0.03, 0.06, 0.1, 0.3, 1.0)
"""Step costs at which the colour of a cell changes; verdicts do at 0.0005, 0.03 and 0.1."""


def heatmap(folder: Path, pairs: pd.DataFrame) -> dict[str, Any]:
    """The columns and rows of the heatmap of ``folder/recommend``, and the data of the cards.

    Returns:
        `columns` (a dict per pair: `first`, `second`, `preset`, `bits`, `verdict`), `groups` (limit
        of bits and number of columns), `rows` (a dict per tensor: `name`, `shape` and `cells`:
        `text`, `shade`, `title`, `chosen`), `key` (texts of the colours), and `cards` (JSON).
    """
    tensors = read_frame(folder / "recommend" / "tensors.parquet")
    pairs = pairs.sort_values(["up_to", "bits_per_element"], kind="stable")
    specs = [str(spec) for spec in pairs["quantizer"]]
    if (tensors["chosen"] & (tensors["quantizer"] == FULL)).any():
        specs.append(FULL)
    options = {
        str(name): records(group.set_index("quantizer", drop=False).loc[specs])
        for name, group in tensors.groupby("parameter", sort=False)
    }
    return {
        "columns": [*map(_column, records(pairs))] + [_FULL] * (len(specs) - len(pairs)),
        "groups": [(_limit(limit), len(rows)) for limit, rows in pairs.groupby("up_to")]
        + [("32", 1)] * (len(specs) - len(pairs)),
        "rows": [_row(name, rows) for name, rows in options.items()],
        "key": [f"{100 * step:g}" for step in STEPS] + ["more, or !"],
        "bounds": [f"{100 * bound:g}" for bound in (CLEAN, UNPROVEN, UNSAFE)],
        "cards": _cards(folder, specs, options),
    }


_FULL = {"first": "32-bit", "second": "32-bit", "preset": "", "bits": "32", "verdict": "clean"}


def _limit(value: Any) -> str:
    return "more" if math.isinf(float(value)) else f"≤ {value:g}"


def _column(row: Mapping[str, Any]) -> dict[str, str]:
    first, second = row["quantizer"].split(" + ")
    return {
        "first": first,
        "second": second,
        "preset": row["preset"],
        "bits": bits(row["bits_per_element"]),
        "verdict": row["verdict"],
    }


def _row(name: str, options: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "name": name,
        "shape": str(options[0]["shape"]).replace("x", TIMES),
        "cells": [
            {
                "text": _short(row),
                "shade": _shade(row),
                "chosen": bool(row["chosen"]),
                "title": f"{row['quantizer']}: {row['verdict']}, step cost x 100: {_short(row)}",
            }
            for row in options
        ],
    }


def _shade(row: Mapping[str, Any]) -> int:
    """The number of the colour; -1 where nothing was measured."""
    cost = cost_of(row)
    if not row["cost"] > 0:
        return -1
    if dangerous(row) or math.isnan(cost):
        return len(STEPS)
    return sum(cost > step for step in STEPS)


def _short(row: Mapping[str, Any]) -> str:
    """The step cost in hundredths; an exclamation mark for zero points and exploding updates."""
    cost = cost_of(row)
    if row["cost"] > 0 and dangerous(row):
        return "!"
    if not row["cost"] > 0 or math.isnan(cost):
        return "-"
    return f"{100 * max(cost, 0):.2g}" if cost < 1 else f"{100 * cost:.0f}"


def _cards(
    folder: Path, specs: Sequence[str], options: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Markup:
    """Data for the cards of the page's script, as JSON inside HTML."""
    moments = _moments(folder / "frames" / "profiles.parquet")
    tensors = [
        {
            "name": name,
            "shape": str(rows[0]["shape"]).replace("x", TIMES),
            "numel": int(rows[0]["numel"]),
            "chosen": next(at for at, row in enumerate(rows) if row["chosen"]),
            "options": [_option(row) for row in rows],
            "moments": moments.get(name, {}),
        }
        for name, rows in options.items()
    ]
    text = json.dumps({"specs": list(specs), "tensors": tensors}, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


def _option(row: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {
        "bits": row["bits_per_element"],
        "cost": cost_of(row),
        "gain": row["update_gain"],
        "noise": row["update_noise"],
        "largest": row["largest_update"],
        "zero": row["zero_point_share"],
        "first": row["stalled_share_first"],
        "second": row["stalled_share_second"],
    }
    return {
        **{name: _json(value) for name, value in numbers.items()},
        "verdict": row["verdict"],
        "size": size(row["nbytes"]),
    }


def _json(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _moments(path: Path) -> dict[str, dict[str, Any]]:
    """Histogram and picture by parameter and moment."""
    moments: dict[str, dict[str, Any]] = {}
    for row in records(read_frame(path)) if exists(path) else ():
        moments.setdefault(row["parameter"], {})[row["state"]] = {
            "lowest": int(row["lowest"]),
            "counts": [int(count) for count in row["counts"]],
            "zeros": int(row["zeros"]),
            "rows": int(row["picture_rows"]),
            "cols": int(row["picture_cols"]),
            "picture": base64.b64encode(row["picture"]).decode("ascii"),
        }
    return moments
