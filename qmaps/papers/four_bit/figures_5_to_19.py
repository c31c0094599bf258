"""Figures 5 to 19: outlier patterns of first moments across depths and matrices."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from qmaps import analyze, figures
from qmaps.analyze.outlier_lines import LINES
from qmaps.papers.context import Context
from qmaps.papers.exhibit import Exhibit, Finding, Frames, Needs, Statement
from qmaps.papers.four_bit._matrices import blocks, matrices
from qmaps.papers.numbers import percent

CELLS = 128
STRONG = 5 * LINES
"""Lines that hold so many of the outliers make a pattern."""
CLEARLY = 1.5
"""Rows and columns are told apart where one holds so many times what the other does."""


def build(context: Context) -> Frames:
    """Patterns of the matrices of blocks spread over the depth."""
    moments = matrices(context.states, "exp_avg")
    chosen = blocks(list(moments))
    cells = [
        analyze.outliers({name: moments[name] for name in members}, cells=CELLS).assign(block=block)
        for block, members in chosen.items()
    ]
    kept = {name: moments[name] for members in chosen.values() for name in members}
    return {
        "cells": pd.concat(cells, ignore_index=True),
        "lines": analyze.outlier_lines(kept),
    }


def find(frames: Frames) -> Finding:
    """Whether patterns differ."""
    lines = frames["lines"]
    rows, columns = lines["in_rows"], lines["in_cols"]
    kind = pd.Series("no pattern", lines.index).mask(
        lines[["in_rows", "in_cols"]].max(axis=1) > STRONG, "both"
    )
    kind = kind.mask((rows > STRONG) & (rows > CLEARLY * columns), "rows")
    kind = kind.mask((columns > STRONG) & (columns > CLEARLY * rows), "columns")
    counts = kind.value_counts()
    return Finding(
        statements=[
            Statement(
                "Outlier patterns vary across depths and matrices.",
                len(counts) > 1,
                ", ".join(f"{name}: {count}" for name, count in counts.items())
                + f" of {len(kind)} matrices (a pattern: more than {percent(STRONG)} of the "
                f"largest hundredth in {percent(LINES)} of the lines; both: neither holds "
                f"{CLEARLY:g} times what the other does).",
            )
        ],
        why="The paper shows three blocks of Swin-T, six of RoBERTa-Large and six of GPT-2 Medium. "
        "Pretrained weights of these cannot be downloaded here; `qmaps papers --states` draws the "
        "same for any checkpoint.",
        tables={"lines": lines.assign(pattern=kind)},
    )


def draw(frames: Frames) -> dict[str, Figure]:
    """A figure per block."""
    return {
        f"figures-5-to-19-{number}": figures.outliers(part)
        for number, (_, part) in enumerate(frames["cells"].groupby("block", sort=False))
    }


EXHIBIT = Exhibit(
    name="figures-5-to-19",
    covers=tuple(f"Figure {number}" for number in range(5, 20)),
    title="Outlier patterns of first moments across the layers",
    needs=Needs.STATES,
    source="states of {headline}",
    build=build,
    find=find,
    draw=draw,
)
