"""Pictures of the pages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image, ImageChops

from qmaps import figures
from qmaps.storage.files import replacing

DPI = 100
CLOSE = 0.11
"""Largest mean difference of a colour, of 255, for a palette."""


def save(figure: Figure, path: Path) -> None:
    """Write `figure` as a PNG; equal figures give equal bytes."""
    figures.save(figure, path, dpi=DPI)
    shrink(path)


def shrink(path: Path) -> None:
    """Reduce a PNG to a palette, a third of the bytes; not a heat map, as it would show bands."""
    with Image.open(path) as picture:
        seen = picture.convert("RGBA")
        opaque = Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen).convert("RGB")
    palette = opaque.quantize(256, kmeans=3, dither=Image.Dither.NONE)
    apart = np.asarray(ImageChops.difference(opaque, palette.convert("RGB")))
    with replacing(path) as temporary:
        (palette if apart.mean() <= CLOSE else opaque).save(temporary, format="PNG", optimize=True)
