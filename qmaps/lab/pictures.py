"""Drawing every figure that a run folder has frames for."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from qmaps import analyze, figures
from qmaps.errors import CaptureError
from qmaps.storage.files import exists, output_folder, read_frame


def draw(
    run: str | os.PathLike[str],
    *,
    keep: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> list[Path]:
    """Draw the figures of a run folder to ``run/figures``.

    Args:
        run: a folder with ``frames/``, ``sweep/sweep.parquet``, or both.
        keep: keep figures that are newer than their frames, instead of drawing them again.
        progress: called before each figure with the number of figures done, the number of all,
            and the figure's name; at the end with an empty name.

    Returns:
        The PNG files, in the order of the report.

    Raises:
        CaptureError: the folder has neither.
        OutputError: one of these files is damaged, or a figure cannot be written.
    """
    folder = Path(run)
    sources = {
        picture.name: _source(folder, picture.frame or picture.name)
        for picture, _ in figures.pictures()
    }
    jobs = {
        picture.name: partial(_drawn, drawing, frame)
        for picture, drawing in figures.pictures()
        if (frame := _frame(folder, picture.frame or picture.name)) is not None
    }
    if not jobs:
        raise CaptureError(
            f"run={str(folder)!r} has no frames to draw (frames/*.parquet, sweep/sweep.parquet)"
        )
    out = output_folder(folder / "figures")
    files = []
    for done, (name, job) in enumerate(jobs.items()):
        if progress:
            progress(done, len(jobs), name)
        path = out / f"{name}.png"
        if not (keep and _newer(path, sources[name])):
            figures.save(job(), path)
        files.append(path)
    if progress:
        progress(len(jobs), len(jobs), "")
    return files


def _drawn(drawing: Callable[..., Figure], frame: Callable[[], pd.DataFrame]) -> Figure:
    return drawing(frame())


def _frame(folder: Path, name: str) -> Callable[[], pd.DataFrame] | None:
    """A function that reads or makes the frame of that name; None if the folder has none."""
    path, swept = _source(folder, name), folder / "sweep" / "sweep.parquet"
    if path != swept:
        return partial(read_frame, path) if exists(path) else None
    state = name.removeprefix("pareto_")
    if not exists(swept):
        return None
    sweep = read_frame(swept)
    if name == "sweep":
        return lambda: sweep
    if not (sweep["state"] == state).any():
        return None
    return partial(analyze.pareto, sweep, state=state)


def _source(folder: Path, name: str) -> Path:
    """The file that the frame of that name is read from, or made from."""
    path = folder / "frames" / f"{name}.parquet"
    if not exists(path) and name in ("sweep", "pareto_exp_avg", "pareto_exp_avg_sq"):
        return folder / "sweep" / "sweep.parquet"
    return path


def _newer(path: Path, source: Path) -> bool:
    return exists(path) and path.stat().st_mtime_ns > source.stat().st_mtime_ns
