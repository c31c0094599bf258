"""Declaring a figure, and its pictures in the laboratory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec

from matplotlib.figure import Figure

from qmaps.figures._style import styled
from qmaps.maps._registry import refuse_built_in

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
    """

    name: str
    title: str
    caption: str
    place: int = 1000
    frame: str = ""


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
