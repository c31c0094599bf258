"""Pictures that are small enough for the repository."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from qmaps import figures
from qmaps.storage.files import replacing

DPI = 100
COLOURS = 128
"""Colours of a palette, which takes a third of the bytes without a visible difference."""


def save(figure: Figure, path: Path) -> None:
    """Write `figure` as a PNG with a palette; equal figures give equal bytes."""
    figures.save(figure, path, dpi=DPI)
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    with replacing(path) as temporary:
        small.save(temporary, format="PNG", optimize=True)
