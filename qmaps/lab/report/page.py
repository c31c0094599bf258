"""A run folder as one self-contained HTML page."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from qmaps import figures
from qmaps.analyze.limits import MIN_SIZE
from qmaps.analyze.recommend.verdict import MEANINGS
from qmaps.errors import CaptureError
from qmaps.lab.pictures import png
from qmaps.lab.report.answer import CANDIDATE, OWN, answer
from qmaps.lab.report.committed import Interval, intervals
from qmaps.lab.report.heatmap import heatmap
from qmaps.lab.report.templating import Cell, cell, template
from qmaps.storage.files import exists, read_frame, read_record, write_text

UNKNOWN = {
    **dict.fromkeys(("workload", "architecture", "data", "checkpoint", "naming", "unit"), ""),
    "min_quantized_size": MIN_SIZE,
    "trained": {},
}
"""What a page says of a run where its folder does not tell."""


def write(run: str | os.PathLike[str]) -> Path:
    """Write ``run/report.html`` from the contents of a run folder.

    The page contains its figures; it does not need other files or a network.

    Args:
        run: a folder of `qmaps.lab.run`, or one with ``figures/`` or ``recommend/``.

    Returns:
        The page.

    Raises:
        CaptureError: the folder holds nothing to report.
        OutputError: the page cannot be written, or a frame is damaged.
    """
    folder = Path(run)
    pictures = [
        {
            "id": picture.name,
            "title": picture.title,
            "caption": picture.caption,
            "data": embedded(path),
            "narrow": embedded(narrow) if exists(narrow) else "",
        }
        for picture, _ in figures.pictures()
        if exists(path := png(folder, picture.name))
        for narrow in [png(folder, picture.name, narrow=True)]
    ]
    trainings, settings = folder / "frames" / "losses.parquet", folder / "about.json"
    losses = read_frame(trainings) if exists(trainings) else None
    about: dict[str, Any] = UNKNOWN | (read_record(settings) if exists(settings) else {})
    answered = answer(folder, about, losses)
    known = intervals(about)
    pairs = _pairs(about, answered)
    committed = {label: known[pair] for label, pair in pairs.items() if pair in known}
    if not pictures and losses is None and answered is None:
        raise CaptureError(f"run={str(folder)!r} must hold figures, losses or a recommendation")
    page = template("run").render(
        about=about,
        folder=folder,
        answer=answered,
        heatmap=answered and heatmap(folder, answered["pairs"]),
        losses=[] if losses is None else _losses(losses, committed),
        losses_heads=[] if losses is None else _heads(losses, str(about["unit"]), committed),
        interval=committed.get(about["trained"].get(OWN, "")),
        yardstick=next(iter(committed.items()), None),
        meanings=MEANINGS,
        heads=CANDIDATE,
        pictures=pictures,
    )
    out = folder / "report.html"
    write_text(out, page)
    return out


def embedded(path: Path) -> str:
    """The bytes of a file for an address of the kind ``data:``."""
    return base64.b64encode(path.read_bytes()).decode("ascii")


def _pairs(about: Mapping[str, Any], answered: Mapping[str, Any] | None) -> dict[str, str]:
    """By label of a training, its pair of quantizers; without those that are mixed.

    Presets have the pairs that they had when the run was recommended for.
    """
    if answered is None:
        return {}
    rows = answered["pairs"]
    specs = dict(zip(rows["preset"], rows["quantizer"], strict=True))
    if answered["mixed"] == 1:
        specs[OWN] = str(answered["main"])
    return {label: specs[key] for key, label in about["trained"].items() if key in specs}


def _heads(frame: pd.DataFrame, unit: str, committed: Mapping[str, Interval]) -> list[str]:
    return [
        *("optimizer", f"minus {frame['run'].iloc[0]}, 1 seed"),
        *["committed, 95 %"] * bool(committed),
        *(f"final validation loss ({unit})", "optimizer state", "runs with NaN"),
    ]


def _losses(frame: pd.DataFrame, committed: Mapping[str, Interval]) -> list[list[Cell]]:
    return [
        [
            cell(row["run"]),
            cell(f"{row['difference']:+.4f}", row["difference"]),
            *[cell(str(committed.get(row["run"], "-")))] * bool(committed),
            cell(f"{row['mean']:.4f}"),
            cell(f"{row['state_mib']:.2f} MiB", row["state_mib"]),
            cell(int(row["nonfinite"])),
        ]
        for row in frame.to_dict("records")
    ]
