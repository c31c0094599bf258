"""Guides list all names of each registry."""

from __future__ import annotations

import inspect
import re
from operator import attrgetter

import pytest

import qmaps
from docsite.kinds import reference
from docsite.page import ROOT
from qmaps import analyze, figures, maps, normalize
from qmaps.algebra.rounding import SUFFIXES as ROUNDINGS
from qmaps.normalize.scale_format import SUFFIXES as FORMATS

pytestmark = pytest.mark.slow


def guide(name: str) -> str:
    return (ROOT / "docs" / name).read_text("utf-8")


@pytest.mark.parametrize("name", [*maps.names(), *normalize.names(), *ROUNDINGS, *FORMATS])
def test_the_grammar_of_specs_has_every_name(name: str) -> None:
    grammar = guide("specs.md").split("## Grammar")[1]
    assert re.search(rf"`{re.escape(name)}`", grammar), name


def test_every_analysis_and_every_figure_is_explained() -> None:
    text = guide("analyze.md")
    for name in analyze.__all__:
        assert f"`{name}`" in text, name
        assert f"analyze.{name}(" in text, name
    for name in figures.FIGURES:
        assert f"figures.{name}(" in text, name


def test_every_function_with_codebooks_is_listed() -> None:
    functions = {
        getattr(module, name)
        for module in (qmaps, qmaps.optim, *reference.modules())
        for name in reference.exported(module)
        if inspect.isfunction(getattr(module, name))
    }
    takes = {f for f in functions if "codebooks" in inspect.signature(f).parameters}
    listed = re.findall(r"^\| `qmaps\.([\w.]+)\(", guide("own-maps.md"), re.MULTILINE)
    assert {attrgetter(name)(qmaps) for name in listed} == takes
