"""Table 3: micro-batches of a step."""

from __future__ import annotations

import pandas as pd

from qmaps.lab.report.claim import Claim
from qmaps.lab.report.published import published
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.lpmm import _ablation as runs
from reproduction.stand_ins import StandIn, in_place


def build(context: Context) -> Frames:
    """The summary of the runs."""
    return {"runs": runs.ablation(context)}


def find(frames: Frames) -> Finding:
    """Width by width and N by N."""
    paper = published("low-precision-model-memory", EXHIBIT.name)
    stand_ins, statements = [], []
    for found in runs.each(frames["runs"]):
        ours = {
            f"{'full precision' if bits == runs.FULL else f'{bits} bits'}, N = {n}":
                found.shown(bits, n=n)
            for bits in (*runs.WIDTHS, runs.FULL)
            for n in found.ns
        }  # fmt: skip
        stand_ins.append(StandIn("top-1 accuracy", runs.quantity(found), ours))
        statements += _statements(found, paper)
    return Finding(
        numbers=in_place(paper, stand_ins),
        statements=statements,
        differences=[
            each
            for found in runs.each(frames["runs"])
            for each in (runs.sums(found), runs.easy(found))
        ],
        why="The paper prints accuracies on ImageNet, of which more is better; in their place "
        "stand final validation losses, of which less is better, ± the standard error over seeds. "
        "All rounding is stochastic. All runs see the same "
        "micro-batches at one learning rate, so that a run of N takes an N-th of the steps with "
        "the sum of N gradients: what full precision makes of the same N stands below. The rate "
        "was not tuned.",
        tables={"runs": frames["runs"]},
    )


def _statements(found: runs.Runs, paper: pd.DataFrame) -> list[Claim]:
    where = f"({found.workload}, {found.seeds} seeds)"
    losses = {n: [found.loss(bits, n=n) for bits in runs.WIDTHS] for n in found.ns}
    ordered = [n for n, given in losses.items() if given == sorted(given)]
    gains = {bits: found.gain(bits) for bits in runs.WIDTHS}
    theirs = {bits: _points(paper, bits) for bits in runs.WIDTHS}
    last = found.ns[-1]
    return [
        Claim(
            f"At every N fewer bits are worse {where}.",
            ordered == found.ns,
            f"At {len(ordered)} of {len(found.ns)} N.",
        ),
        Claim(
            f"Micro-batches gain most at 8 bits and least at 12 {where}.",
            bool(gains[8] > gains[10] > gains[12] and gains[8] > 0),
            "Best N above 1 against N = 1: "
            + ", ".join(f"{bits} bits {-gains[bits]:+.4f}" for bits in runs.WIDTHS)
            + " (the paper's accuracies: "
            + ", ".join(f"{theirs[bits]:+.1f}" for bits in runs.WIDTHS)
            + " points); "
            + f"full precision goes from {found.said(runs.FULL)} to "
            + f"{found.said(runs.FULL, n=last)} at N = {last}.",
        ),
    ]


def _points(paper: pd.DataFrame, bits: int) -> float:
    """The paper's gain in points."""
    rows = paper[paper["what"].str.startswith(f"{bits} bits")]["paper"].tolist()
    return float(max(rows[1:]) - rows[0])


EXHIBIT = Exhibit(
    name="table-3",
    covers=("Table 3",),
    title="The number N of micro-batches of a step",
    needs=Needs.REPORTS,
    build=build,
    find=find,
    command=runs.COMMAND,
)
