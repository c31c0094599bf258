"""Table 3: micro-batches of a step."""

from __future__ import annotations

import pandas as pd

from reproduction import tuned_losses
from reproduction.claim import Claim, published
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.lpmm import _ablation as runs
from reproduction.proxy_metrics import ProxyMetric, in_place


def build(context: Context) -> Frames:
    """The summary of the runs."""
    return {"runs": runs.tuned(context)}


def find(frames: Frames) -> Finding:
    """Width by width and N by N."""
    paper = published("low-precision-model-memory", EXHIBIT.name)
    proxies, statements = [], []
    for workload_runs in runs.each(frames["runs"]):
        ours = {
            f"{bits} bits, N = {n}": workload_runs.behind(bits, n=n)
            for bits in runs.WIDTHS
            for n in workload_runs.ns
        }
        proxies.append(ProxyMetric("top-1 accuracy", runs.lost(workload_runs), ours))
        statements += _statements(workload_runs, paper)
    return Finding(
        numbers=in_place(paper, proxies),
        statements=statements,
        differences=[runs.easier(workload_runs) for workload_runs in runs.each(frames["runs"])],
        why="The paper prints accuracies on ImageNet, of which more is better; in their place "
        "stand final validation losses minus those of full precision with the same N, seed by "
        "seed, ± the standard error, of which less is better. All rounding is stochastic. "
        f"{runs.TUNED} So a larger N sees more data, in full precision too, beside which it "
        f"stands. {' '.join(map(runs.power, runs.each(frames['runs'])))}",
        tables={"runs": frames["runs"]},
    )


def _statements(workload_runs: runs.Runs, paper: pd.DataFrame) -> list[Claim]:
    where = f"({workload_runs.workload}, {workload_runs.seeds} seeds)"
    behind = {
        n: [workload_runs.behind(bits, n=n)[0] for bits in runs.WIDTHS] for n in workload_runs.ns
    }
    ordered = [n for n, losses in behind.items() if losses == sorted(losses)]
    gains = {bits: workload_runs.gain(bits) for bits in runs.WIDTHS}
    theirs = {bits: _points(paper, bits) for bits in runs.WIDTHS}
    steps = [runs.apart(gains[8], gains[10]), runs.apart(gains[10], gains[12]), gains[8]]
    return [
        Claim(
            f"At every N fewer bits are worse {where}.",
            ordered == workload_runs.ns,
            f"At {len(ordered)} of {len(workload_runs.ns)} N.",
        ),
        Claim(
            f"Micro-batches gain most at 8 bits and least at 12 {where}.",
            runs.all_above(steps),
            "Less behind full precision at the best N above 1 than at N = 1: "
            + ", ".join(
                f"{bits} bits {gain:.4f} ± {error:.4f}" for bits, (gain, error) in gains.items()
            )
            + " (the paper's accuracies: "
            + ", ".join(f"{theirs[bits]:+.1f}" for bits in runs.WIDTHS)
            + " points).",
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
    command=tuned_losses.command(runs.STUDY),
)
