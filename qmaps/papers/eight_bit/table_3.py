"""Table 3: the ablation."""

from __future__ import annotations

import math

from qmaps.papers import committed
from qmaps.papers.context import Context
from qmaps.papers.exhibit import Exhibit, Finding, Frames, Needs
from qmaps.papers.published import published
from qmaps.papers.verdict import beside


def build(context: Context) -> Frames:
    """Summary of the runs."""
    return {"summary": committed.ablation(context, "eight-bit")}


def find(frames: Frames) -> Finding:
    """Unstable runs and perplexity."""
    ours: dict[tuple[str, str], float] = {}
    for row in frames["summary"].itertuples():
        ours[str(row.setting), "unstable runs"] = float(str(row.unstable))
        ours[str(row.setting), "perplexity"] = math.exp(float(str(row.loss)))
    return Finding(
        numbers=beside(published("8-bit-optimizers", EXHIBIT.name), ours),
        why="Rows: bits | dynamic | block-wise | stable embedding. The paper's perplexity is of a "
        "token, after days; ours of a byte, after a hundred steps of stdlib-lm-tiny, of the "
        "median stable run. Runs so short seldom diverge; the page of the command says more.",
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
