"""Figures 5 to 19: outlier patterns of first moments across depths and matrices."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from qmaps import analyze, figures
from qmaps.analyze.outliers import LINES
from qmaps.capture import CapturedStates
from reproduction.claim import Claim
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.four_bit import _pretrained
from reproduction.four_bit._matrices import BLOCKS, blocks, in_blocks, matrices
from reproduction.numbers import percent

CELLS = 128
STRONG = 5 * LINES
"""Smallest number of outliers in the lines of a pattern."""
CLEARLY = 1.5
"""Smallest ratio between rows and columns for a pattern in one of them."""
PRETRAINED_BLOCKS = 3


def build(context: Context) -> Frames:
    """Patterns of the matrices of blocks spread over the depth."""
    frames = _patterns(context.states, BLOCKS)
    if context.pretrained is not None:
        patterns = _patterns(context.pretrained, PRETRAINED_BLOCKS)
        frames |= {_pretrained.PREFIX + name: frame for name, frame in patterns.items()}
    return frames


def _patterns(states: CapturedStates, limit: int) -> dict[str, pd.DataFrame]:
    """`cells` of the matrices of some blocks, `lines` of those of all."""
    moments = matrices(states, "exp_avg")
    cells = [
        analyze.outliers({name: moments[name] for name in members}, cells=CELLS).assign(block=block)
        for block, members in blocks(list(moments), limit).items()
    ]
    lines = analyze.outlier_lines(in_blocks(moments))
    return {"cells": pd.concat(cells, ignore_index=True), "lines": lines}


def kinds(lines: pd.DataFrame) -> pd.Series[str]:
    """Pattern of each matrix's outliers: rows, columns, both, or none."""
    rows, columns = lines["in_rows"], lines["in_cols"]
    kind = pd.Series("no pattern", lines.index).mask(
        lines[["in_rows", "in_cols"]].max(axis=1) > STRONG, "both"
    )
    kind = kind.mask((rows > STRONG) & (rows > CLEARLY * columns), "rows")
    return kind.mask((columns > STRONG) & (columns > CLEARLY * rows), "columns")


def find(frames: Frames) -> Finding:
    """Compare the patterns of matrices."""
    statements, tables = [], {}
    for prefix, of_it in (("", ""), (_pretrained.PREFIX, _pretrained.OF_IT)):
        name = f"{prefix}lines"
        if name not in frames:
            continue
        kind = kinds(frames[name])
        tables[name] = frames[name].assign(pattern=kind)
        counts = kind.value_counts()
        statements.append(
            Claim(
                f"Outlier patterns vary across depths and matrices{of_it}.",
                len(counts) > 1,
                ", ".join(f"{pattern}: {count}" for pattern, count in counts.items())
                + f" of {len(kind)} matrices.",
            )
        )
    return Finding(
        statements=statements,
        why=f"A pattern: more than {percent(STRONG)} of the largest hundredth lie in "
        f"{percent(LINES)} of the lines; both: neither rows nor columns hold {CLEARLY:g} times "
        "what the others do. The paper shows three blocks of Swin-T, six of RoBERTa-Large and six "
        "of GPT-2 Medium.",
        why_ours="Weights of these cannot be downloaded here, and our own transformer is trained "
        f"from scratch. {_pretrained.note(frames)} `python -m reproduction --states` draws "
        "the same for any checkpoint.",
        tables=tables,
    )


def draw(frames: Frames) -> dict[str, Figure]:
    """A figure per block."""
    return {
        f"figures-5-to-19-{prefix}{number}": figures.outliers(part)
        for prefix in ("", _pretrained.PREFIX)
        if f"{prefix}cells" in frames
        for number, (_, part) in enumerate(frames[f"{prefix}cells"].groupby("block", sort=False))
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
    captions={
        f"figures-5-to-19-{number}": "The matrices of a block, as the checkpoint names "
        "them. The colours of each start at its own median."
        for number in range(BLOCKS)
    }
    | {
        f"figures-5-to-19-{_pretrained.PREFIX}{number}": f"{_pretrained.CAPTION}{block} block."
        for number, block in enumerate(("the first", "a middle", "the last"))
    },
    pretrained=True,
)
