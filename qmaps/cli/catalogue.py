"""Facts for `qmaps maps` and `qmaps memory` from a file, which spares them the import of torch.

``python -m docsite.catalogue`` writes ``catalogue.json``; a test fails where it is not up to date.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qmaps.distribution import has_plugins

FILE = Path(__file__).with_name("catalogue.json")
PACKAGES = ("maps", "normalize")
"""Packages of which every class is listed; of optimizers those that are missing are imported."""


def facts() -> dict[str, Any] | None:
    """Contents of the file; None where the packages have to be imported.

    That is where torch is imported already, or where files or another package add something.
    """
    if "torch" in sys.modules or has_plugins():
        return None
    read: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return read if read["modules"] == modules() else None


def modules() -> dict[str, list[str]]:
    """Names of the files in `PACKAGES` that can declare something."""
    root = Path(__file__).parents[1]
    return {name: sorted(each.stem for each in (root / name).glob("[!_]*.py")) for name in PACKAGES}


def listing() -> dict[str, Any]:
    """Maps, normalizers, formats of scales and transforms, from the imported packages."""
    from qmaps import maps, normalize
    from qmaps.maps import _transforms as transforms
    from qmaps.normalize.scale_format import SUFFIXES

    rows = []
    for name in maps.names():
        cls = maps.REGISTRY[name]
        widths = {"su"[not s]: _span(cls.widths_of(s)) for s in cls.signs}
        summary = (cls.__doc__ or "").strip().splitlines()[0]
        rows.append({"map": name, "widths": widths, "fitted": cls.fitted, "about": summary})
    return {
        "maps": rows,
        "normalizers": normalize.names(),
        "suffixes": sorted(SUFFIXES),
        "transforms": transforms.written(),
    }


def _span(widths: range) -> str:
    return f"{widths[0]}" if len(widths) == 1 else f"{widths[0]}-{widths[-1]}"


def states_of(rows: int, rest: int, form: Mapping[str, Any]) -> tuple[dict[str, int], int]:
    """Bytes of states by preset of a model that is known by its size.

    Args:
        rows: rows of its matrix, at least 2.
        rest: elements of its vector.
        form: the optimizer's entry of ``states`` in the file: for each preset the bytes of a row
            and of a matrix without rows, bytes of an element of the vector, and True if AdamW steps
            vectors.

    Returns:
        The bytes, and the number of elements that AdamW steps.
    """
    vector = form["vector"] * rest
    nbytes = {name: row * rows + fixed + vector for name, (row, fixed) in form["presets"].items()}
    return nbytes, rest * form["vector_in_adamw"]
