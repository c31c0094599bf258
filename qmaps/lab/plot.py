"""One figure by name, of a run folder, of captured states, or of a frame in a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from qmaps import analyze, figures, sweep
from qmaps.analyze._states import MIN_SIZE, States
from qmaps.errors import BadValueError, CaptureError, nearest, shown
from qmaps.figures._declare import FILES
from qmaps.lab.frames import frame_of
from qmaps.lab.pictures import _frame
from qmaps.storage.files import exists, read_frame

SWEPT = "sweep/sweep.parquet"
PARETO = "pareto_"


@dataclass(frozen=True)
class Plot:
    """A figure that can be drawn by name.

    Attributes:
        name: its name: that of a picture of the report, or else of the function in
            `qmaps.figures`.
        title: what it shows.
        file: the file of its frame in a run folder; empty if no run folder has it.
        frame: name of that frame among those of the laboratory; empty if it has none.
        draw: the function in `qmaps.figures`.
    """

    name: str
    title: str
    file: str
    frame: str
    draw: Callable[..., Figure]


def plots() -> dict[str, Plot]:
    """Every figure by name: the pictures of the report in their order, then the others."""
    found = {}
    for picture, draw in figures.pictures():
        name = picture.frame or picture.name
        swept = name == "sweep" or name.startswith(PARETO)
        file = SWEPT if swept else f"frames/{name}.parquet"
        found[picture.name] = Plot(picture.name, picture.title, file, name, draw)
    drawn = {each.draw for each in found.values()}
    for name, draw in sorted(figures.FIGURES.items()):
        if draw not in drawn:
            title = (draw.__doc__ or "").strip().split("\n")[0].rstrip(".").replace("``", "")
            found[name] = Plot(name, title, FILES.get(name, ""), "", draw)
    return found


def plot(name: str) -> Plot:
    """A figure by its name.

    Raises:
        BadValueError: there is no such figure; the message has the nearest and all names.
    """
    known = plots()
    if name not in known:
        raise BadValueError(
            f"figure={shown(name)} is not a figure; qmaps plot --list shows all "
            f"{len(known)}{nearest(name, known)}"
        )
    return known[name]


def of_run(each: Plot, run: str | os.PathLike[str]) -> Figure:
    """Draw a figure of a run folder.

    Args:
        each: the figure.
        run: the folder.

    Raises:
        CaptureError: the folder does not have its frame.
        OutputError: the frame is damaged.
    """
    folder = Path(run)
    if each.frame:
        read = _frame(folder, each.frame)
        if read is not None:
            return each.draw(read())
    elif each.file and exists(folder / each.file):
        return each.draw(read_frame(folder / each.file))
    lacks = f"the frame of {each.name} ({each.file})" if each.file else f"a frame for {each.name}"
    raise CaptureError(f"run={str(folder)!r} does not have {lacks}")


def of_states(each: Plot, states: States, *, min_quantized_size: int = MIN_SIZE) -> Figure:
    """Draw a figure of captured states; its frame is made first, and not kept.

    Args:
        each: the figure.
        states: captured states, their path, or tensors by parameter and state name.
        min_quantized_size: parameters of at most this many elements are left out.

    Raises:
        BadValueError: the figure is not one of states.
        CaptureError: as in `qmaps.lab.analyze_states`.
    """
    if each.file == SWEPT:
        swept = sweep.run(states, sweep.STANDARD, min_quantized_size=min_quantized_size)
        if not each.frame.startswith(PARETO):
            return each.draw(swept)
        return each.draw(analyze.pareto(swept, state=each.frame.removeprefix(PARETO)))
    frame = frame_of(each.frame, states, min_quantized_size=min_quantized_size)
    if frame is None:
        raise BadValueError(
            f"figure={each.name!r} cannot be drawn from states; give a run folder or a frame"
        )
    return each.draw(frame)


def of_frame(each: Plot, path: str | os.PathLike[str]) -> Figure:
    """Draw a figure of a frame in a Parquet file.

    Args:
        each: the figure.
        path: the file.

    Raises:
        BadValueError: the file is missing or no Parquet file, or lacks columns of the figure.
    """
    try:
        frame = pd.read_parquet(path)
    except Exception:  # pyarrow and pandas raise many kinds on damaged files
        raise BadValueError(f"frame={str(path)!r} cannot be read as a Parquet file") from None
    return each.draw(frame)
