"""Checks for every figure, of the package and of other packages."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.cbook import is_math_text
from matplotlib.figure import Figure
from matplotlib.text import Text

from qmaps import figures
from qmaps.errors import BadValueError

Draw = Callable[[pd.DataFrame], Figure]


@dataclass(frozen=True)
class Subject:
    """A figure's frame, its required columns, and its number of axes."""

    frame: pd.DataFrame
    needed: str
    panels: int


def shown(figure: Figure) -> list[Axes]:
    return [axis for axis in figure.axes if axis.get_visible()]


def legend(figure: Figure, which: int = 0) -> list[str]:
    return [text.get_text() for text in figure.legends[which].get_texts()]


def columns_are_enough(draw: Draw, subject: Subject) -> None:
    figure = draw(subject.frame[subject.needed.split()])
    assert isinstance(figure, Figure)
    assert len(shown(figure)) == subject.panels


def missing_columns_are_named(name: str, draw: Draw, subject: Subject) -> None:
    needed = subject.needed.split()
    for column in needed:
        with pytest.raises(BadValueError) as caught:
            draw(subject.frame.drop(columns=column))
        assert str(caught.value) == (
            f"frame lacks {column}; {name} needs the columns {', '.join(needed)}"
        )
    with pytest.raises(BadValueError) as caught:
        draw(pd.DataFrame())
    assert str(caught.value) == (
        f"frame lacks {', '.join(needed)}; {name} needs the columns {', '.join(needed)}"
    )


def a_frame_without_rows_is_refused(name: str, draw: Draw, subject: Subject) -> None:
    with pytest.raises(BadValueError) as caught:
        draw(subject.frame.iloc[:0])
    assert str(caught.value) == f"frame has no rows; {name} needs at least one"


def the_frame_is_left_alone(draw: Draw, subject: Subject) -> None:
    before = subject.frame.copy()
    draw(subject.frame)
    pd.testing.assert_frame_equal(subject.frame, before)


def text_is_legible_and_inside(figure: Figure) -> None:
    figure.draw_without_rendering()
    page = figure.bbox.padded(1)
    results = [figure.get_supxlabel(), figure.get_supylabel()]
    for axis in shown(figure):
        results += [axis.get_xlabel(), axis.get_ylabel()]
        labels = [
            *axis.get_xticklabels(),
            *axis.get_yticklabels(),
            axis.xaxis.label,
            axis.yaxis.label,
        ]
        for text in (*labels, axis.title, *axis.texts, *figure.texts):
            if text.get_text() and text.get_visible():
                assert text.get_fontsize() >= 9
        for text in (axis.xaxis.label, axis.yaxis.label, axis.title):
            box = text.get_window_extent()
            if text.get_text():
                assert page.x0 <= box.x0 < box.x1 <= page.x1
                assert page.y0 <= box.y0 < box.y1 <= page.y1
    assert len([label for label in results if label]) >= 2


def save_as_drawn(figure: Figure, path: Path) -> None:
    """Save without a layout; it takes most of the time, and tests of `save` cover it."""
    figure.set_layout_engine("none")
    figures.save(figure, path, dpi=50)


def equal_figures_give_equal_bytes(
    draw: Draw, subject: Subject, folder: Path, kinds: tuple[str, ...] = ("png",)
) -> None:
    """With any settings of the user."""
    figure = draw(subject.frame)
    for kind in kinds:
        save_as_drawn(figure, folder / f"a.{kind}")
    users = {"axes.grid": False, "font.size": 21, "lines.linewidth": 7, "axes.facecolor": "red",
             "savefig.bbox": "tight", "figure.facecolor": "green", "svg.hashsalt": "x"}  # fmt: skip
    with mpl.rc_context(users):
        figure = draw(subject.frame)
        for kind in kinds:
            save_as_drawn(figure, folder / f"b.{kind}")
        assert {key: mpl.rcParams[key] for key in users} == users
    for kind, start in zip(kinds, (b"\x89PNG", b"<?xml", b"%PDF"), strict=False):
        written = (folder / f"a.{kind}").read_bytes()
        assert written.startswith(start)
        assert written == (folder / f"b.{kind}").read_bytes()
        assert not re.search(rb"<dc:date>|20\d\d-\d\d-\d\dT", written)
    assert len(list(folder.iterdir())) == 2 * len(kinds)


ODD = ["$\\frac{1}$", "$", "$$ \\$ _a^b%{c}#&<d>", "two\nlines\x00\t", "x" * 500, "名前 имя"]
NAMED = ("quantizer", "parameter", "setting", "run", "tensor", "normalizer", "group", "map")


def names_are_literal_text(name: str, draw: Draw, subject: Subject, folder: Path) -> None:
    """With any characters in them."""
    frame = subject.frame.copy()
    columns = [column for column in NAMED if column in frame and frame[column].dtype != float]
    for column in columns:
        numbers = {text: number for number, text in enumerate(dict.fromkeys(frame[column]))}
        frame[column] = [f"{text} {ODD[numbers[text] % len(ODD)]}" for text in frame[column]]
    figure = draw(frame)
    save_as_drawn(figure, folder / "odd.svg")
    ElementTree.parse(folder / "odd.svg")
    results = [text.get_text() for text in figure.findobj(Text)]
    odd = [text for text in results if "frac" in text or "lines" in text]
    assert odd or not columns or name in ("convergence_bound",)
    assert not any(map(is_math_text, odd))
    assert not any("two\nlines" in text or "x" * 130 in text for text in results)
