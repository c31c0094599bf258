"""Pictures of the pages."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from qmaps import figures
from qmaps.storage.files import replacing

DPI = 100


def save(figure: Figure, path: Path) -> None:
    """Write `figure` as a PNG in all its colours; equal figures give equal bytes.

    A palette would take a third of the bytes, and draws bands into heat maps.
    """
    figures.save(figure, path, dpi=DPI)
    with Image.open(path) as picture:
        opaque = picture.convert("RGB")
    with replacing(path) as temporary:
        opaque.save(temporary, format="PNG", optimize=True)
