"""A run folder as one self-contained HTML page."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pandas as pd

from qmaps import figures
from qmaps.analyze._states import MIN_SIZE
from qmaps.errors import CaptureError
from qmaps.lab.report.answer import answer
from qmaps.lab.report.heatmap import heatmap
from qmaps.lab.report.templating import Cell, cell, template
from qmaps.storage.files import exists, read_frame, read_record, write_text

UNKNOWN = {
    **dict.fromkeys(("workload", "checkpoint", "naming", "unit"), ""),
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
        }
        for picture, _ in figures.pictures()
        if exists(path := folder / "figures" / f"{picture.name}.png")
    ]
    trainings, settings = folder / "frames" / "losses.parquet", folder / "about.json"
    losses = read_frame(trainings) if exists(trainings) else None
    about = UNKNOWN | (read_record(settings) if exists(settings) else {})
    answered = answer(folder, about, losses)
    if not pictures and losses is None and answered is None:
        raise CaptureError(f"run={str(folder)!r} must hold figures, losses or a recommendation")
    page = template("run").render(
        about=about,
        folder=folder,
        answer=answered,
        heatmap=answered and heatmap(folder, answered["pairs"]),
        losses=[] if losses is None else _losses(losses),
        pictures=pictures,
    )
    out = folder / "report.html"
    write_text(out, page)
    return out


def embedded(path: Path) -> str:
    """The bytes of a file for an address of the kind ``data:``."""
    return base64.b64encode(path.read_bytes()).decode("ascii")


def _losses(frame: pd.DataFrame) -> list[list[Cell]]:
    return [
        [
            cell(row["run"]),
            cell(f"{row['mean']:.4f}"),
            cell(f"{row['difference']:+.4f}"),
            cell(f"{row['state_mib']:.2f} MiB", row["state_mib"]),
            cell(int(row["nonfinite"])),
        ]
        for row in frame.to_dict("records")
    ]
