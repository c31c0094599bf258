"""Declaring a figure, and writing one to a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec

from matplotlib.figure import Figure

from qmaps.errors import BadValueError
from qmaps.figures.style import style, styled
from qmaps.registry import refuse_built_in
from qmaps.storage.files import replacing

P = ParamSpec("P")

FIGURES: dict[str, Callable[..., Figure]] = {}
"""Every figure by name."""


@dataclass(frozen=True)
class Picture:
    """A picture in the laboratory's run folder and report, drawn if its frame exists.

    Attributes:
        name: name of its file, unique among pictures.
        title: its heading in the report.
        caption: the text below it in the report.
        place: the report shows pictures in ascending order of `place`, then of their names.
        frame: its frame: the name of a file in ``frames/``, ``sweep``, or
            ``pareto_exp_avg`` and ``pareto_exp_avg_sq``; its own name if left out.
        stacks: whether the figure takes ``stacked=True``, which puts its panels below each other
            for a narrow screen.
    """

    name: str
    title: str
    caption: str
    place: int = 1000
    frame: str = ""
    stacks: bool = False


FILES: dict[str, str] = {}
"""By the name of a figure, the file of a run folder with its frame, where no picture names it."""

_PICTURES: dict[str, tuple[Picture, Callable[..., Figure]]] = {}


def figure(
    *pictures: Picture, file: str = ""
) -> Callable[[Callable[P, Figure]], Callable[P, Figure]]:
    """Declare a function that draws a frame as a figure of `qmaps.figures`.

    The function then runs in the shared style, with texts made literal.

    Args:
        *pictures: pictures in the laboratory; left out if it has no frame for
            it.
        file: where a run folder has its frame, such as ``replay/summary.parquet``, for a figure
            without pictures.
    """

    def declared(draw: Callable[P, Figure]) -> Callable[P, Figure]:
        refuse_built_in(draw.__name__, draw, FIGURES, "figure")
        for picture in pictures:
            functions = {name: function for name, (_, function) in _PICTURES.items()}
            refuse_built_in(picture.name, draw, functions, "picture")
        drawn = styled(draw)
        FIGURES[draw.__name__] = drawn
        if file:
            FILES[draw.__name__] = file
        _PICTURES.update({picture.name: (picture, drawn) for picture in pictures})
        return drawn

    return declared


def pictures() -> list[tuple[Picture, Callable[..., Figure]]]:
    """Every picture of the laboratory, in the report's order, and its figure."""
    return sorted(_PICTURES.values(), key=lambda entry: (entry[0].place, entry[0].name))


KINDS = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""File types, with the metadata that would make equal figures differ."""


def save(figure: Figure, path: str | os.PathLike[str], *, dpi: int = 160) -> None:
    """Write `figure` as PNG, SVG or PDF by the ending of `path`, atomically.

    Equal figures give equal bytes, whatever the user's matplotlib settings.

    Args:
        figure: the figure to write.
        path: the file, ending in ``.png``, ``.svg`` or ``.pdf``; an existing one is replaced.
        dpi: pixels per inch of a PNG, and of the heatmaps inside an SVG or a PDF; above 0.

    Raises:
        BadValueError: `path` has another ending, or `dpi` is not positive.
        OutputError: the file cannot be written.
    """
    kind = kind_of(path)
    if dpi <= 0:
        raise BadValueError(f"dpi={dpi!r} must be positive")
    with style(), replacing(path) as temporary:
        # One pass of the constrained layout does not settle; without this the same figure would
        # differ between its first file and its second.
        figure.draw_without_rendering()
        figure.savefig(temporary, format=kind[1:], dpi=dpi, metadata=KINDS[kind])


def kind_of(path: str | os.PathLike[str], parameter: str = "path") -> str:
    """The ending of a figure's file in lower case; BadValueError for one that cannot be written."""
    kind = Path(path).suffix.lower()
    if kind not in KINDS:
        raise BadValueError(f"{parameter}={str(path)!r} must end in {', '.join(KINDS)}")
    return kind
