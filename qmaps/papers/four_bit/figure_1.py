"""Figures 1 and 2: outliers of first moments, and blocks that are too large for them."""

from __future__ import annotations

import pandas as pd

import qmaps
from qmaps import analyze, figures
from qmaps.analyze.outlier_lines import LINES
from qmaps.papers.context import Context
from qmaps.papers.exhibit import Exhibit, Finding, Frames, Needs, Statement
from qmaps.papers.four_bit._matrices import matrices
from qmaps.papers.numbers import number, percent

SMALL, LARGE = "B128/DE@4s", "B2048/DE@4s"
PATTERN = 5
"""Outliers have a pattern where lines hold so many times what they would by chance."""


def build(context: Context) -> Frames:
    """Patterns of all matrices; the one with most column outliers in detail."""
    moments = matrices(context.states, "exp_avg")
    lines = analyze.outlier_lines(moments)
    by_column = str(lines["tensor"][lines["in_cols"].argmax()])
    by_row = str(lines["tensor"][lines["in_rows"].argmax()])
    chosen = moments[by_column]
    decoded = {spec: qmaps.quantizer(spec).quantize(chosen).dequantize() for spec in (SMALL, LARGE)}
    shown = {f"{by_column}: 32 bits": chosen}
    shown |= {f"{by_column}: {spec}": values for spec, values in decoded.items()}
    errors = [
        {"tensor": title, "quantizer": spec,
         "sqnr_db": qmaps.quantizer(spec).error(tensor)["sqnr_db"]}
        for title, tensor in moments.items()
        for spec in (SMALL, LARGE)
    ]  # fmt: skip
    return {
        "lines": lines,
        "approximated": analyze.outliers(shown),
        "histogram": analyze.histogram(chosen, (SMALL, LARGE)),
        "patterns": analyze.outliers(
            {f"rows: {by_row}": moments[by_row], f"columns: {by_column}": chosen}
        ),
        "errors": pd.DataFrame(errors),
    }


def find(frames: Frames) -> Finding:
    """Which patterns there are, and which blocks fit them better."""
    lines, chance = frames["lines"], LINES
    rows, columns = lines["in_rows"].max(), lines["in_cols"].max()
    errors = frames["errors"].pivot(index="tensor", columns="quantizer", values="sqnr_db")
    better = errors[SMALL] > errors[LARGE]
    return Finding(
        statements=[
            Statement(
                "In some first moments outliers lie in fixed rows.",
                bool(rows > PATTERN * chance),
                f"At most {percent(rows)} of the largest hundredth lie in {percent(chance)} of "
                "the rows.",
            ),
            Statement(
                "In others they lie in fixed columns.",
                bool(columns > PATTERN * chance),
                f"At most {percent(columns)} in {percent(chance)} of the columns.",
            ),
            Statement(
                "Blocks of 128 approximate the moment better than blocks of 2048.",
                bool(better.all()),
                f"In {better.sum()} of {len(better)} matrices; by "
                f"{number(float((errors[SMALL] - errors[LARGE]).median()))} dB in the median.",
            ),
        ],
        tables={"lines": lines, "errors": frames["errors"]},
    )


EXHIBIT = Exhibit(
    name="figure-1",
    covers=("Figure 1", "Figure 2"),
    title="Outliers of first moments in rows and columns, and the moment in blocks",
    needs=Needs.STATES,
    source="states of {headline}",
    build=build,
    find=find,
    draw=lambda frames: {
        "figure-1": figures.outliers(frames["approximated"]),
        "figure-1-histogram": figures.histogram(frames["histogram"]),
        "figure-2": figures.outliers(frames["patterns"]),
    },
    captions={
        "figure-1": "The matrix with most of its outliers in few columns: in 32 bits, and decoded.",
        "figure-1-histogram": "Its magnitudes on their way through both quantizers.",
        "figure-2": "Most in few rows (left), most in few columns (right).",
    },
)
