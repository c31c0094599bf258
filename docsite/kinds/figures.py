"""The gallery: every figure, drawn from a short training run or from made-up numbers."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from docsite.page import CLASS_ALONE, ROOT, Page, docstring_of, first_sentence, source
from docsite.pictures import picture
from qmaps import analyze, figures, lab
from qmaps.lab import workloads
from tests.figures.synthetic import FRAMES

TITLE = "Figures"
RUN = ROOT / "build" / "docs" / "lab"
WORKLOAD, STEPS = "stdlib-lm-tiny", 40
PAIRS = (
    "B256/DE@8s + B256/DE-0@8u",
    "tensor/linear0@8s + tensor/linear0@8u",
    "B128/DE@4s + rank1/linear@4u",
    "B128/DE@4s + B128/DE@4u",
    "B128/DE@4s + B128/DE-0@4u",
    "B128/linear@4s + B128/linear@4u",
)


def pages() -> list[Page]:
    """The gallery, and a page for each figure."""
    run()
    names = sorted(figures.FIGURES)
    drawn = [_page(name) for name in names]
    cards = "\n".join(
        f"-   [![{name}]({name}.png)]({name}.md)\n\n    [`{name}`]({name}.md): "
        f"{first_sentence(getattr(figures, name).__doc__)}.\n"
        for name in names
    )
    text = (
        "# Figures\n\nEvery function takes a frame of `qmaps.analyze` and returns a matplotlib "
        f"figure. The examples show states of {STEPS} steps of `{WORKLOAD}`, or made-up numbers "
        "where the page says so. `qmaps lab` draws the figures for your own states.\n\n"
        f'<div class="grid cards gallery" markdown>\n\n{cards}\n</div>\n'
    )
    return [Page("figures/index.md", "Gallery", text), *drawn]


def run() -> None:
    """A small run of the laboratory, kept between builds."""
    if not (RUN / "report.html").exists():
        lab.run(workloads.get(WORKLOAD), RUN, steps=STEPS, pairs=PAIRS)


def _page(name: str) -> Page:
    function = getattr(figures, name)
    module = sys.modules[function.__module__]
    drawn, description = _drawn(name)
    text = "\n".join(
        [
            f"# `{name}`",
            "",
            f"![{name}]({name}.png)",
            "",
            description,
            "",
            docstring_of(f"{function.__module__}.{name}"),
            *(
                [docstring_of(f"qmaps.analyze.{name}", **CLASS_ALONE)]
                if hasattr(analyze, name) and inspect.isfunction(getattr(analyze, name))
                else []
            ),
            source(Path(module.__file__ or "")),
        ]
    )
    return Page(f"figures/{name}.md", name, text, {f"figures/{name}.png": picture(drawn, ".png")})


def _drawn(name: str) -> tuple[Figure, str]:
    """The figure with its description."""
    function = getattr(figures, name)
    shown = [figure.frame or figure.name for figure, draw in figures.pictures() if draw is function]
    path = RUN / "frames" / f"{min(shown, default=None)}.parquet"
    real = f"States and losses of {STEPS} steps of `{WORKLOAD}`."
    if path.exists():
        return function(pd.read_parquet(path)), real
    return function(FRAMES[name]), "Made-up numbers."
