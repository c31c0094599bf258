"""Writing a figure to a file."""

from __future__ import annotations

import os
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from qmaps.errors import BadValueError
from qmaps.figures._style import RC
from qmaps.files import replacing

KINDS = {".png": {"Software": None}, ".svg": {"Date": None}}
"""File types, with the metadata that would make equal figures differ."""


def save(figure: Figure, path: str | os.PathLike[str], *, dpi: int = 160) -> None:
    """Write `figure` as PNG or SVG by the ending of `path`, atomically.

    Equal figures give equal bytes.

    Raises:
        BadValueError: another ending.
        OutputError: the file cannot be written.
    """
    kind = Path(path).suffix.lower()
    if kind not in KINDS:
        raise BadValueError(f"path={str(path)!r} must end in {' or '.join(KINDS)}")
    with mpl.rc_context(RC), replacing(path) as temporary:
        figure.savefig(temporary, format=kind[1:], dpi=dpi, metadata=KINDS[kind])
