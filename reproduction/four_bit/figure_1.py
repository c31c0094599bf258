"""Figures 1 and 2: outliers of first moments, and blocks too large for them."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor

import qmaps
from qmaps import analyze, figures
from qmaps.analyze.outliers import LINES
from reproduction.claim import Claim
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.four_bit import _pretrained
from reproduction.four_bit._matrices import in_blocks, matrices
from reproduction.four_bit._names import printed, renamed
from reproduction.numbers import number, percent

SMALL, LARGE = "B128/DE@4s", "B2048/DE@4s"
PATTERN = 5
"""Outliers have a pattern if lines have so many times their number by chance."""
PRETRAINED = "figure-2-pretrained"
TABLES = ("lines", _pretrained.PREFIX + "lines", "errors")


def build(context: Context) -> Frames:
    """Patterns of all matrices; the one with most column outliers in detail."""
    moments = matrices(context.states, "exp_avg")
    frames, by_column = _patterns(moments)
    if context.pretrained is not None:
        patterns, _ = _patterns(matrices(context.pretrained, "exp_avg"))
        frames |= {_pretrained.PREFIX + name: frame for name, frame in patterns.items()}
    chosen = moments[by_column]
    decoded = {spec: qmaps.quantizer(spec).quantize(chosen).dequantize() for spec in (SMALL, LARGE)}
    shown = {f"{by_column}: 32 bits": chosen}
    shown |= {f"{by_column}: {printed(spec)}": values for spec, values in decoded.items()}
    errors = [
        {"tensor": title, "quantizer": spec,
         "sqnr_db": qmaps.quantizer(spec).error(tensor)["sqnr_db"]}
        for title, tensor in moments.items()
        for spec in (SMALL, LARGE)
    ]  # fmt: skip
    return frames | {
        "approximated": analyze.outliers(shown),
        "histogram": analyze.histogram(chosen, (SMALL, LARGE)),
        "errors": pd.DataFrame(errors),
    }


def _patterns(moments: dict[str, Tensor]) -> tuple[dict[str, pd.DataFrame], str]:
    """`lines`, `patterns` of those with most in rows and in columns, the latter's name."""
    moments = in_blocks(moments)
    lines = analyze.outlier_lines(moments)
    by_column = str(lines["tensor"][lines["in_cols"].argmax()])
    by_row = str(lines["tensor"][lines["in_rows"].argmax()])
    shown = {f"rows: {by_row}": moments[by_row], f"columns: {by_column}": moments[by_column]}
    return {"lines": lines, "patterns": analyze.outliers(shown)}, by_column


def _of(lines: pd.DataFrame, of_it: str) -> list[Claim]:
    """Test the patterns."""
    chance, rows, columns = LINES, lines["in_rows"].max(), lines["in_cols"].max()
    return [
        Claim(
            f"In some first moments outliers lie in fixed rows{of_it}.",
            bool(rows > PATTERN * chance),
            f"At most {percent(rows)} of the largest hundredth lie in {percent(chance)} of "
            "the rows.",
        ),
        Claim(
            f"In others they lie in fixed columns{of_it}.",
            bool(columns > PATTERN * chance),
            f"At most {percent(columns)} in {percent(chance)} of the columns.",
        ),
    ]


def find(frames: Frames) -> Finding:
    """Compare the patterns and the suitable blocks with the paper's."""
    pretrained = frames.get(_pretrained.PREFIX + "lines")
    errors = frames["errors"].pivot(index="tensor", columns="quantizer", values="sqnr_db")
    better = errors[SMALL] > errors[LARGE]
    return Finding(
        statements=[
            *_of(frames["lines"], ""),
            *([] if pretrained is None else _of(pretrained, _pretrained.OF_IT)),
            Claim(
                "Blocks of 128 approximate the moment better than blocks of 2048.",
                bool(better.all()),
                f"In {better.sum()} of {len(better)} matrices; by "
                f"{number(float((errors[SMALL] - errors[LARGE]).median()))} dB in the median.",
            ),
        ],
        why_ours=_pretrained.note(frames),
        tables={name: frames[name] for name in TABLES if name in frames},
    )


def draw(frames: Frames) -> dict[str, Figure]:
    """The approximated moment, and the patterns."""
    shown = {
        "figure-1": figures.outliers(frames["approximated"], one_scale=True),
        "figure-1-histogram": figures.histogram(renamed(frames["histogram"], "quantizer")),
        "figure-2": figures.outliers(frames["patterns"]),
    }
    patterns = frames.get(_pretrained.PREFIX + "patterns")
    return shown if patterns is None else {**shown, PRETRAINED: figures.outliers(patterns)}


EXHIBIT = Exhibit(
    name="figure-1",
    covers=("Figure 1", "Figure 2"),
    title="Outliers of first moments in rows and columns, and the moment in blocks",
    needs=Needs.STATES,
    source="states of {headline}",
    build=build,
    find=find,
    draw=draw,
    captions={
        "figure-1": "The matrix with most of its outliers in few columns: in 32 bits, and decoded "
        f"from {SMALL} and from {LARGE}. All three have the same colours.",
        "figure-1-histogram": f"Magnitudes of the same matrix on their way through {SMALL} (above) "
        f"and {LARGE} (below).",
        "figure-2": "Of all matrices in blocks: that with most outliers in few rows (left), and "
        "that with most in few columns (right).",
        PRETRAINED: f"{_pretrained.CAPTION}the same of its matrices.",
    },
    pretrained=True,
)
