"""Appendix C: mean absolute Adam errors."""

from __future__ import annotations

import pandas as pd

from qmaps import analyze, figures
from qmaps.lab.frames import COMPARED
from reproduction.claim import Claim, Verdict, published
from reproduction.context import Context
from reproduction.eight_bit._maps import NAMES, both, first_only
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.numbers import mean_and_error, number, ratio_interval
from reproduction.verdict import beside

PAIRS = {"dynamic": both("dynamic"), "block-wise dynamic": both("dynamic", "B2048")}
MEAN, MEDIAN = "mean absolute Adam error", "median absolute Adam error"
LARGEST = "largest absolute Adam error"
COLUMNS = {MEAN: "mean_abs_error", MEDIAN: "median_abs_error", LARGEST: "max_abs_error"}


def build(context: Context) -> Frames:
    """Errors of both pairs on the states of each seed, and of many pairs on the headline's."""
    frames = [
        analyze.update_error(states, PAIRS.values()).assign(seed=seed)
        for seed, states in enumerate(context.several)
    ]
    return {
        "by-seed": pd.concat(frames, ignore_index=True),
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
    by_name = {name: errors[errors["quantizer"] == spec] for name, spec in PAIRS.items()}
    ratios = {
        quantity: ratio_interval(*(list(by_name[name][column]) for name in reversed(PAIRS)))
        for quantity, column in COLUMNS.items()
    }
    numbers = beside(published("8-bit-optimizers", EXHIBIT.name), ours)
    if ratios[MEAN][2] >= 1:  # our own seeds do not tell the two apart
        numbers["verdict"] = Verdict.NOT_COMPARED.value
    collapsed = errors.groupby("quantizer")["zeroed_share"].mean()
    return Finding(
        numbers=numbers,
        statements=[
            Claim(
                f"The {quantity} is smaller with blocks.",
                ratios[quantity][2] < 1,
                f"{number(ratios[quantity][0])} times that of whole tensors, seed by seed "
                f"({number(ratios[quantity][1])} to {number(ratios[quantity][2])}).",
            )
            for quantity in (MEAN, LARGEST)
        ],
        why="± is the standard error over seeds, and the statements' intervals are at 95 % of the "
        "ratio's mean over them: seeds differ far more than the two do in each. Where a second "
        "moment decodes to 0, the update "
        f"becomes m / eps, and single elements rule the mean: {collapsed[PAIRS['dynamic']]:.2g} of "
        f"all elements per tensor, {collapsed[PAIRS['block-wise dynamic']]:.2g} in blocks.",
        why_ours="Our model, trained for so few steps, has more of them: rows of the embedding "
        "that were hardly met.",
        tables={"compared": frames["compared"]},
    )


def named(compared: pd.DataFrame) -> pd.DataFrame:
    """The pairs of maps by the paper's names; the others by their specs."""
    names = {both(name): name for name in NAMES}
    names |= {first_only(name): f"{name}, first moment only" for name in NAMES}
    names[PAIRS["block-wise dynamic"]] = "block-wise dynamic (B2048)"
    return compared.replace({"quantizer": names})


EXHIBIT = Exhibit(
    name="appendix-c",
    covers=("Appendix C",),
    title="Mean absolute error of the Adam update",
    needs=Needs.STATES,
    source="states of {grid}; the figure: {headline}",
    build=build,
    find=find,
    draw=lambda frames: {"appendix-c": figures.update_error(named(frames["compared"]))},
    captions={
        "appendix-c": "All pairs of quantizers that these pages compare, on the same states: the "
        "first eight in whole tensors (tensor/...), with the second moment in 8 bits or in 32. "
        "Linear is linear0, dynamic is DE."
    },
)
