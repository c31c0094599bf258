"""Statements of the README and its pages about measurements match the committed results."""

from __future__ import annotations

import re
from typing import Any

import pytest

from benchmarks import readme
from qmaps.optim import AdamW8bit

pytestmark = pytest.mark.slow


def text_of(name: str) -> str:
    return (readme.ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", readme.PAGES)
def test_a_page_is_up_to_date(name: str) -> None:
    text = text_of(name)
    assert readme.updated(name, text) == text
    # A line with a comment at its start is HTML, not Markdown.
    assert not re.search("^ *<!-- words", text, re.MULTILINE)


def test_each_mark_must_be_in_the_file_once() -> None:
    expected = r"docs/speed\.md must have one mark <!-- table: speed -->, got 0"
    with pytest.raises(ValueError, match=expected):
        readme.updated("docs/speed.md", "no table")
    mark = "<!-- words: a -->old<!-- end of words -->"
    assert readme.replaced("file", f"{mark} rest", "a", "new") == f"{mark} rest".replace(
        "old", "new"
    )
    with pytest.raises(ValueError, match="got 2"):
        readme.replaced("file", mark + mark, "a", "new")


def test_the_picture_has_the_numbers_of_the_command() -> None:
    picture = readme.PICTURE.read_text(encoding="utf-8")
    assert picture == readme.picture()
    totals = [float(gb) for gb in re.findall(r">([\d.]+) GB<", picture)]
    rows = [readme.memory()[preset] for preset in readme.BARS]
    assert totals == pytest.approx([row["total"] for row in rows], abs=0.05)
    widths = [float(w) for w in re.findall(r'width="([\d.]+)" height="18" fill="#ef', picture)]
    states = [row["states"] for row in rows]
    assert [w / widths[0] for w in widths] == pytest.approx(
        [s / states[0] for s in states], abs=1e-3
    )
    assert (states[0], rows[0]["parameters"], rows[0]["gradients"]) == (56, 14, 14)


def test_the_box_has_one_unit_and_names_the_instructions_of_torch() -> None:
    text = text_of("README.md")
    assert "8.13 bits per state element, 2.03 bytes per parameter, not 8" in text
    assert "4.25 bits per state element, 1.06 bytes per parameter, not 8" in text
    assert "with AVX2 alone, in torch too, " in text


def test_the_first_screen_can_be_pasted() -> None:
    diff = text_of("README.md").split("```diff\n")[1].split("```")[0]
    loop, trainer = diff.split("\n\n")
    scope: dict[str, Any] = {}
    exec(loop.split("\n")[1].removeprefix("+"), scope)
    assert scope["AdamW"] is AdamW8bit
    pytest.importorskip("transformers")
    lines = [line.removeprefix("+") for line in trainer.splitlines()]
    from qmaps.integrations.transformers import unregister

    try:
        exec("from transformers import TrainingArguments", scope)
        for line in lines:
            exec(line, scope)
        assert scope["args"].optim == "qmaps_adamw_8bit"
    finally:
        unregister()
