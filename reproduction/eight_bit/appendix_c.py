"""Appendix C: mean absolute Adam errors."""

from __future__ import annotations

import pandas as pd

from qmaps import analyze, figures
from qmaps.lab.frames import COMPARED
from qmaps.lab.report.claim import Claim
from qmaps.lab.report.published import published
from reproduction.context import Context
from reproduction.eight_bit._maps import both
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.numbers import mean_and_error, number
from reproduction.verdict import beside

PAIRS = {"dynamic": both("dynamic"), "block-wise dynamic": both("dynamic", "B2048")}
MEAN, MEDIAN = "mean absolute Adam error", "median absolute Adam error"
LARGEST = "largest absolute Adam error"
COLUMNS = {MEAN: "mean_abs_error", MEDIAN: "median_abs_error", LARGEST: "max_abs_error"}


def build(context: Context) -> Frames:
    """Errors of both pairs on the states of each seed, and of many pairs on the headline's."""
    found = [
        analyze.update_error(states, PAIRS.values()).assign(seed=seed)
        for seed, states in enumerate(context.several)
    ]
    return {
        "by-seed": pd.concat(found, ignore_index=True),
        "compared": analyze.update_error(context.states, COMPARED),
    }


def find(frames: Frames) -> Finding:
    """Means with standard errors over seeds."""
    errors = frames["by-seed"]
    ours = {
        (name, quantity): mean_and_error(list(errors.loc[errors["quantizer"] == spec, column]))
        for quantity, column in COLUMNS.items()
        for name, spec in PAIRS.items()
    }
    largest = {name: ours[name, LARGEST][0] for name in PAIRS}
    collapsed = errors.groupby("quantizer")["zeroed_share"].mean()
    return Finding(
        numbers=beside(published("8-bit-optimizers", EXHIBIT.name), ours),
        statements=[
            Claim(
                "Large errors of single updates are rarer with blocks.",
                largest["block-wise dynamic"] < largest["dynamic"],
                f"Largest |Δu|: {number(largest['block-wise dynamic'])} in blocks, "
                f"{number(largest['dynamic'])} per tensor.",
            )
        ],
        why="± is the standard error over seeds. Where a second moment decodes to 0, the update "
        f"becomes m / eps, and single elements rule the mean: {collapsed[PAIRS['dynamic']]:.2g} of "
        f"all elements per tensor, {collapsed[PAIRS['block-wise dynamic']]:.2g} in blocks.",
        why_ours="Our model, trained for so few steps, has more of them: rows of the embedding "
        "that were hardly met.",
        tables={"compared": frames["compared"]},
    )


EXHIBIT = Exhibit(
    name="appendix-c",
    covers=("Appendix C",),
    title="Mean absolute error of the Adam update",
    needs=Needs.STATES,
    source="states of {grid}; the figure: {headline}",
    build=build,
    find=find,
    draw=lambda frames: {"appendix-c": figures.update_error(frames["compared"])},
    captions={"appendix-c": "All pairs of quantizers that these pages compare, same states."},
)
