"""Figures as bytes of a site's file."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from matplotlib.figure import Figure

from qmaps import analyze, figures
from qmaps.maps import Map


def picture(figure: Figure, ending: str = ".svg") -> bytes:
    """Bytes of a figure as a picture, written by `qmaps.figures.save`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"figure{ending}"
        figures.save(figure, path, dpi=110)
        return path.read_bytes()


@functools.cache
def curves(maps: tuple[Map, ...]) -> bytes:
    """Codebooks as curves, cached for all pages."""
    return picture(figures.map_curves(analyze.map_curves(maps)))
