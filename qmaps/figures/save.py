"""Writing a figure to a file."""

from __future__ import annotations

import os
from pathlib import Path

from matplotlib.figure import Figure

from qmaps.errors import BadValueError
from qmaps.figures._style import style
from qmaps.storage.files import replacing

KINDS = {
    ".png": {"Software": None},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}
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
    """The ending of a figure's file, in lower case.

    Args:
        path: the file.
        parameter: the name of `path` in the error message.

    Raises:
        BadValueError: figures cannot be written to files of this ending.
    """
    kind = Path(path).suffix.lower()
    if kind not in KINDS:
        raise BadValueError(f"{parameter}={str(path)!r} must end in {', '.join(KINDS)}")
    return kind
