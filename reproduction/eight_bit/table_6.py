"""Table 6: errors of four maps for the first moment."""

from __future__ import annotations

import pandas as pd

from qmaps import analyze, sweep
from qmaps.lab.report.published import published
from reproduction.context import Context
from reproduction.eight_bit._maps import NAMES, first_only
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.numbers import mean_and_error
from reproduction.verdict import beside

RELATIVE, ABSOLUTE = "relative Adam error", "absolute quantization error"
MEDIAN = "median relative Adam error"


def build(context: Context) -> Frames:
    """Both errors of each map on the states of each seed."""
    rows = []
    for seed, states in enumerate(context.several):
        updates = analyze.update_error(states, [first_only(name) for name in NAMES])
        singles = [f"tensor/{spec}@8s" for spec in NAMES.values()]
        first = sweep.summarize(sweep.run(states, singles), state="exp_avg")
        for name, update, own in zip(
            NAMES, updates.to_dict("records"), first.to_dict("records"), strict=True
        ):
            rows.append(
                {
                    "seed": seed,
                    "map": name,
                    RELATIVE: 100 * update["mean_rel_error"],
                    MEDIAN: 100 * update["median_rel_error"],
                    ABSOLUTE: 1e10 * own["mean_abs_error"],
                }
            )
    return {"errors": pd.DataFrame(rows)}


def find(frames: Frames) -> Finding:
    """Means with standard errors over seeds."""
    errors = frames["errors"]
    ours = {
        (name, quantity): mean_and_error(list(errors.loc[errors["map"] == name, quantity]))
        for quantity in (RELATIVE, ABSOLUTE, MEDIAN)
        for name in NAMES
    }
    numbers = beside(published("8-bit-optimizers", EXHIBIT.name), ours)
    numbers.loc[numbers["quantity"] == MEDIAN, "unit"] = "%"
    return Finding(
        numbers=numbers,
        why="Only the first moment is quantized, with one scale for a tensor; ± is the standard "
        "error over seeds. Absolute errors scale with a model's gradients, so that only their "
        "order can be compared. The mean relative error is ruled by updates near zero, which a "
        "linear map rounds to 0 (an error of 100 %), and in larger measure the longer the states' "
        "tails are; the median stands beside it. Quantiles fitted to the tensor itself, as they "
        "are here, do well where the elements are; inverse dynamic has few codes there.",
        why_ours="The paper's model has a thousand times our parameters.",
        tables={"by-seed": errors},
    )


EXHIBIT = Exhibit(
    name="table-6",
    covers=("Table 6",),
    title="Relative Adam error and absolute quantization error for the first Adam state",
    needs=Needs.STATES,
    source="states of {grid}",
    build=build,
    find=find,
)
