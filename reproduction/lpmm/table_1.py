"""Table 1: 12/8/8 bits beside full precision."""

from __future__ import annotations

import pandas as pd

from reproduction import tuned_losses
from reproduction.claim import FIELDS, Claim
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.lpmm import _ablation as runs
from reproduction.verdict import beside


def build(context: Context) -> Frames:
    """The runs of one micro-batch a step, and the long ones."""
    tuned = runs.tuned(context)
    return {"tuned": tuned[tuned["N"] == 1], "headline": runs.headline(context)}


def find(frames: Frames) -> Finding:
    """Losses in place of the accuracies."""
    ours: dict[tuple[str, str], float | tuple[float, float]] = {}
    statements: list[Claim] = []
    for summary in runs.summaries(frames):
        ours["full precision", runs.quantity(summary)] = summary.shown(runs.FULL)
        ours["LPMM-SGDM, 12/8/8 bits", runs.quantity(summary)] = summary.shown(12)
    text = "12/8/8 bits lose no accuracy against full precision"
    statements += [runs.alike(text, summary, 12) for summary in runs.each(frames["tuned"])]
    longer = runs.each(frames["headline"])
    statements += [runs.matches(f"{text}, at a rate that was not tuned", summary, 12)
                   for summary in longer]  # fmt: skip
    (first,) = runs.each(frames["tuned"])
    return Finding(
        numbers=beside(pd.DataFrame(columns=list(FIELDS)), ours),
        statements=statements,
        why="ResNet-18 and ResNet-50 on ImageNet are out of reach here, and our copy of the paper "
        "lacks the accuracies. Final validation losses of small models stand for them, ± the "
        "standard error over seeds; all rounding is stochastic, a step takes one micro-batch. No "
        "accuracy is lost where the whole interval over seeds lies below a tenth of what 8 bits "
        f"lose that are rounded to nearest. {runs.TUNED} {runs.power(first)} The rate of "
        f"{' and '.join(summary.workload for summary in longer)} was not tuned; there no accuracy "
        "is lost where the whole interval lies within the margin of losses.",
        tables={"runs": pd.concat(list(frames.values()), ignore_index=True)},
    )


EXHIBIT = Exhibit(
    name="table-1",
    covers=("Table 1",),
    title="LPMM-SGDM with 12/8/8 bits beside full precision",
    needs=Needs.REPORTS,
    build=build,
    find=find,
    command=f"{tuned_losses.command(runs.STUDY)}` and of `{runs.HEADLINE}",
)
