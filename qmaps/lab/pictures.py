"""Drawing every figure that a run folder has frames for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from qmaps import analyze, figures
from qmaps.errors import CaptureError
from qmaps.storage.files import exists, output_folder, read_frame

DRAWINGS: Mapping[str, Callable[[pd.DataFrame], Figure]] = {
    "loss_curves": figures.loss_curves,
    "update_error": figures.update_error,
    "code_pairs": figures.code_pairs,
    "first_code_error": figures.first_code_error,
    "map_curves": figures.map_curves,
    "histogram_first": figures.histogram,
    "histogram_second": figures.histogram,
    "inverse_sqrt": figures.inverse_sqrt,
    "outliers": figures.outliers,
}
"""What draws each frame of ``frames/``, by the frame's name, which is the figure's too."""


def draw(
    run: str | os.PathLike[str], *, progress: Callable[[int, int, str], None] | None = None
) -> list[Path]:
    """Draw the figures of a run folder to ``run/figures``.

    Args:
        run: a folder with ``frames/``, ``sweep/sweep.parquet``, or both.
        progress: called before each figure with the number of figures done, the number of all,
            and the figure's name; at the end with an empty name.

    Returns:
        The PNG files, in the order of the report.

    Raises:
        CaptureError: the folder has neither.
        OutputError: one of these files is damaged, or a figure cannot be written.
    """
    folder = Path(run)
    jobs: dict[str, Callable[[], Figure]] = {}
    for name, drawing in DRAWINGS.items():
        path = folder / "frames" / f"{name}.parquet"
        if exists(path):
            jobs[name] = partial(_from_file, drawing, path)
    swept = folder / "sweep" / "sweep.parquet"
    if exists(swept):
        sweep = read_frame(swept)
        for state in ("exp_avg", "exp_avg_sq"):
            if (sweep["state"] == state).any():
                jobs[f"pareto_{state}"] = partial(_pareto, sweep, state)
    if not jobs:
        raise CaptureError(
            f"run={str(folder)!r} has no frames to draw (frames/*.parquet, sweep/sweep.parquet)"
        )
    out = output_folder(folder / "figures")
    files = []
    for done, (name, job) in enumerate(jobs.items()):
        if progress:
            progress(done, len(jobs), name)
        figures.save(job(), out / f"{name}.png")
        files.append(out / f"{name}.png")
    if progress:
        progress(len(jobs), len(jobs), "")
    return files


def _from_file(drawing: Callable[[pd.DataFrame], Figure], path: Path) -> Figure:
    return drawing(read_frame(path))


def _pareto(sweep: pd.DataFrame, state: str) -> Figure:
    return figures.pareto(analyze.pareto(sweep, state=state))
