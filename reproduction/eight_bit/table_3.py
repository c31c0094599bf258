"""Table 3: the ablation."""

from __future__ import annotations

import math

from qmaps.lab.report.published import published
from reproduction import committed
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.stand_ins import StandIn, in_place


def build(context: Context) -> Frames:
    """Summary of the runs."""
    return {"summary": committed.ablation(context, "eight-bit")}


def find(frames: Frames) -> Finding:
    """Unstable runs and perplexity."""
    unstable: dict[tuple[str, str], float] = {}
    perplexity: dict[str, tuple[float, float]] = {}
    for row in frames["summary"].itertuples():
        unstable[str(row.setting), "unstable runs"] = float(str(row.unstable))
        median = math.exp(float(str(row.loss)))
        perplexity[str(row.setting)] = (median, median * float(str(row.error)))
    return Finding(
        numbers=in_place(
            published("8-bit-optimizers", EXHIBIT.name),
            [StandIn("perplexity", f"perplexity of a byte, {committed.LANGUAGE}", perplexity)],
            unstable,
        ),
        why="Rows: bits | dynamic | block-wise | stable embedding. The paper's perplexity is of a "
        "token, after days; in its place stands that of a byte, after a hundred steps of "
        "stdlib-lm-tiny, of the median stable run, ± the standard error over stable runs; where "
        "none is stable there is none. Models of more than 1e9 parameters, which the paper trains "
        "for a year of one GPU each, are out of reach here. Runs so short seldom diverge; the page "
        "of the command says more.",
        tables={"summary": frames["summary"]},
    )


EXHIBIT = Exhibit(
    name="table-3",
    covers=("Table 3",),
    title="Ablation: dynamic map, blocks, stable embedding",
    needs=Needs.REPORTS,
    build=build,
    find=find,
    command=committed.ABLATIONS,
)
