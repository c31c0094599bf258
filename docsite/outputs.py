"""Committed outputs of the notebooks: those of the last ``make notebooks``.

``python -m docsite.outputs`` copies them into ``notebooks``, without warnings and times, and with
pictures of at most 256 colours.
"""

from __future__ import annotations

import base64
import io
import json
import sys
from typing import Any

from docsite.page import ROOT

SOURCES = ROOT / "notebooks"
RUN = ROOT / "build" / "notebooks"
"""Copies run by ``make notebooks``."""

Notebook = dict[str, Any]


def kept(run: Notebook) -> Notebook:
    """A notebook after its run, without the parts specific to a machine or a run."""
    cells = [_cell(cell) if cell["cell_type"] == "code" else cell for cell in run["cells"]]
    language = {"name": run["metadata"]["language_info"]["name"]}
    return {**run, "cells": cells, "metadata": {**run["metadata"], "language_info": language}}


def _cell(cell: dict[str, Any]) -> dict[str, Any]:
    outputs = [_output(output) for output in cell["outputs"] if output.get("name") != "stderr"]
    metadata = {name: value for name, value in cell["metadata"].items() if name != "execution"}
    return {**cell, "metadata": metadata, "outputs": outputs}


def _output(output: dict[str, Any]) -> dict[str, Any]:
    data = output.get("data", {})
    if "image/png" not in data:
        return output
    return {**output, "data": {**data, "image/png": _small(data["image/png"])}}


def _small(picture: str) -> str:
    """Reduce a PNG picture to a palette, a third of the bytes."""
    from PIL import Image

    image = Image.open(io.BytesIO(base64.b64decode(picture)))
    if image.mode == "P":
        return picture
    file = io.BytesIO()
    image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def code(notebook: Notebook) -> list[str]:
    """Sources of the cells."""
    return ["".join(cell["source"]) for cell in notebook["cells"]]


def main() -> int:
    """Copy the outputs; list the notebooks changed since they ran."""
    stale = []
    for path in sorted(SOURCES.glob("*.ipynb")):
        ran = RUN / path.name
        run = json.loads(ran.read_text("utf-8")) if ran.exists() else None
        if run is None or code(run) != code(json.loads(path.read_text("utf-8"))):
            stale.append(path.name)
            continue
        text = json.dumps(kept(run), indent=1, ensure_ascii=False)
        path.write_text(f"{text}\n", encoding="utf-8")
    if stale:
        print(f"run `make notebooks` first: {', '.join(stale)}", file=sys.stderr)
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
