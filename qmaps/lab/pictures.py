"""Figures of a run folder, all of them or one by name."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from qmaps import figures
from qmaps.analyze import pareto
from qmaps.errors import BadValueError, CaptureError, nearest, shown
from qmaps.figures.declare import FILES
from qmaps.storage.files import content_of, exists, output_folder, read_frame

SWEPT = "sweep/sweep.parquet"
PARETO = "pareto_"
CSV = ".csv"


def draw(
    run: str | os.PathLike[str], *, progress: Callable[[int, int, str], None] | None = None
) -> list[Path]:
    """Draw the figures of a run folder to ``run/figures``.

    Those whose panels can stand below each other are also drawn for narrow screens, as
    ``NAME-narrow.png``.

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
    drawn = [p for p in plots().values() if p.frame and _frame(folder, p) is not None]
    if not drawn:
        raise CaptureError(
            f"run={str(folder)!r} has no frames to draw (frames/*.parquet, sweep/sweep.parquet)"
        )
    output_folder(folder / "figures")
    for number, figure in enumerate(drawn):
        if progress:
            progress(number, len(drawn), figure.name)
        figures.save(of_run(figure, folder), png(folder, figure.name))
        if figure.stacks:
            stacked = of_run(figure, folder, stacked=True)
            figures.save(stacked, png(folder, figure.name, narrow=True))
    if progress:
        progress(len(drawn), len(drawn), "")
    return [png(folder, figure.name) for figure in drawn]


def png(folder: Path, name: str, *, narrow: bool = False) -> Path:
    """The file of a figure of a run folder, or of its form for narrow screens."""
    return folder / "figures" / f"{name}{'-narrow' * narrow}.png"


@dataclass(frozen=True)
class Plot:
    """A figure to be drawn by its name.

    Attributes:
        name: name of a picture of the report, or else of the function in `qmaps.figures`.
        title: the heading of the figure.
        file: the file of its frame in a run folder; empty if no run folder has it.
        frame: name of its frame among those of the laboratory; empty if it has none.
        draw: the function in `qmaps.figures`.
        stacks: whether it takes ``stacked=True``.
    """

    name: str
    title: str
    file: str
    frame: str
    draw: Callable[..., Figure]
    stacks: bool = False


def plots() -> dict[str, Plot]:
    """Every figure by name: the pictures of the report in their order, then the others."""
    by_name = {}
    for picture, drawing in figures.pictures():
        name = picture.frame or picture.name
        swept = name == "sweep" or name.startswith(PARETO)
        file = SWEPT if swept else f"frames/{name}.parquet"
        about = (picture.name, picture.title, file, name)
        by_name[picture.name] = Plot(*about, drawing, picture.stacks)
    drawn = {figure.draw for figure in by_name.values()}
    for name, drawing in sorted(figures.FIGURES.items()):
        if drawing not in drawn:
            title = (drawing.__doc__ or "").strip().split("\n")[0].rstrip(".").replace("``", "")
            by_name[name] = Plot(name, title, FILES.get(name, ""), "", drawing)
    return by_name


def plot(name: str) -> Plot:
    """A figure by its name.

    Raises:
        BadValueError: there is no such figure; the message has the nearest and all names.
    """
    by_name = plots()
    if name not in by_name:
        raise BadValueError(
            f"figure={shown(name)} is not a figure; qmaps plot --list shows all "
            f"{len(by_name)}{nearest(name, by_name)}"
        )
    return by_name[name]


def of_run(figure: Plot, run: str | os.PathLike[str], **options: bool) -> Figure:
    """Draw a figure of a run folder; options are those of its function.

    Raises:
        CaptureError: the folder does not have its frame.
        OutputError: the frame is damaged.
    """
    folder = Path(run)
    frame = _frame(folder, figure)
    if frame is None:
        name = figure.name
        lacks = f"the frame of {name} ({figure.file})" if figure.file else f"a frame for {name}"
        raise CaptureError(f"run={str(folder)!r} does not have {lacks}")
    return figure.draw(frame, **options)


def of_file(path: str | os.PathLike[str]) -> Figure:
    """Draw the CSV file of a monitor.

    Raises:
        CaptureError: the file cannot be read, or is not a monitor's.
    """
    frame = _csv(Path(path))
    try:
        return figures.monitor(frame)
    except BadValueError as error:
        raise CaptureError(f"{str(path)!r} is no file of a monitor: {error}") from None


def _csv(path: Path) -> pd.DataFrame:
    """The rows of a CSV file."""
    try:
        return pd.read_csv(io.BytesIO(content_of(path)))
    except OSError as error:
        raise CaptureError(f"{str(path)!r} cannot be read ({error.strerror})") from None
    except ValueError as error:  # pandas' errors of parsing are ValueErrors
        raise CaptureError(f"{str(path)!r} is no CSV file ({error})") from None


def _frame(folder: Path, figure: Plot) -> pd.DataFrame | None:
    """The frame of a figure in a run folder, read or made; None if the folder has none."""
    if not figure.file or not exists(folder / figure.file):
        return None
    path = folder / figure.file
    frame = _csv(path) if path.suffix == CSV else read_frame(path)
    if not figure.frame.startswith(PARETO):
        return frame
    state = figure.frame.removeprefix(PARETO)
    return pareto(frame, state=state) if (frame["state"] == state).any() else None
