"""Notebooks hold the outputs of a run, without traces of the machine."""

from __future__ import annotations

import base64
import io
import json
import platform
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from docsite import outputs

pytestmark = pytest.mark.slow

NOTEBOOKS = sorted(outputs.SOURCES.glob("*.ipynb"))
ABSOLUTE = re.compile(r"(?<![\w<./])/[a-z]+/|[A-Z]:\\\\")
"""An absolute path; not a closing tag, a spec or a relative path."""


def output_text(notebook: dict[str, Any]) -> str:
    texts = []
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            texts += output.get("text", [])
            for kind, lines in output.get("data", {}).items():
                texts += lines if kind.startswith("text/") else []
    return "".join(texts)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_holds_the_outputs_of_a_run(path: Path) -> None:
    notebook = json.loads(path.read_text("utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {output["output_type"] for cell in cells for output in cell["outputs"]}
    assert kinds <= {"display_data", "execute_result", "stream"}
    assert outputs.kept(notebook)["cells"] == notebook["cells"]
    text = output_text(notebook)
    assert text
    assert not ABSOLUTE.findall(text)
    assert platform.node() not in text


def test_outputs_of_the_machine_are_left_out() -> None:
    file = io.BytesIO()
    Image.effect_noise((64, 64), 50).convert("RGBA").save(file, "PNG")
    picture = {"image/png": base64.b64encode(file.getvalue()).decode(), "text/plain": ["<Figure>"]}
    run = {
        "cells": [
            {"cell_type": "markdown", "source": ["text"]},
            {
                "cell_type": "code",
                "metadata": {"execution": {"iopub.status.busy": "today"}, "tags": []},
                "outputs": [
                    {"output_type": "stream", "name": "stderr", "text": ["a warning"]},
                    {"output_type": "stream", "name": "stdout", "text": ["4.25"]},
                    {"output_type": "display_data", "data": picture},
                ],
            },
        ],
        "metadata": {"language_info": {"name": "python", "version": "3.11.7"}},
        "nbformat": 4,
    }
    cleaned = outputs.kept(run)
    assert cleaned["metadata"] == {"language_info": {"name": "python"}}
    text, code = cleaned["cells"]
    assert text == run["cells"][0]
    assert code["metadata"] == {"tags": []}
    stdout, shown = code["outputs"]
    assert stdout["text"] == ["4.25"]
    assert shown["data"]["text/plain"] == ["<Figure>"]
    small = Image.open(io.BytesIO(base64.b64decode(shown["data"]["image/png"])))
    assert (small.mode, small.size) == ("P", (64, 64))
    assert outputs.kept(cleaned) == cleaned


def test_outputs_of_changed_code_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(outputs, "SOURCES", tmp_path / "notebooks")
    monkeypatch.setattr(outputs, "RUN", tmp_path / "run")
    notebook = json.loads(NOTEBOOKS[0].read_text("utf-8"))
    for folder in (outputs.SOURCES, outputs.RUN):
        folder.mkdir()
        (folder / "a.ipynb").write_text(json.dumps(notebook), "utf-8")
    assert outputs.main() == 0
    assert capsys.readouterr().err == ""
    notebook["cells"][1]["source"] = ["1 + 1"]
    (outputs.SOURCES / "a.ipynb").write_text(json.dumps(notebook), "utf-8")
    assert outputs.main() == 1
    assert capsys.readouterr().err == "run `make notebooks` first: a.ipynb\n"
    assert json.loads((outputs.SOURCES / "a.ipynb").read_text("utf-8")) == notebook
