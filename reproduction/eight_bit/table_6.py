"""Table 6: errors of four maps for the first moment."""

from __future__ import annotations

from collections import Counter

import pandas as pd
import torch

import qmaps
from qmaps import analyze, sweep
from qmaps.analyze._states import MIN_SIZE, adam_pairs
from qmaps.lab.report.published import published
from reproduction.context import Context
from reproduction.differences import Difference
from reproduction.eight_bit._maps import NAMES, first_only
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.numbers import mean_and_error
from reproduction.verdict import beside

RELATIVE, ABSOLUTE = "relative Adam error", "absolute quantization error"
OUTLIERS = (1, 100, 10_000)
"""Multiples of a tensor's largest element that are put beside it, to lengthen its tail."""
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
    return {"errors": pd.DataFrame(rows), "tails": tails(context)}


def tails(context: Context) -> pd.DataFrame:
    """Mean relative errors where each tensor has an outlier, and on pretrained weights.

    Returns:
        `states`, `outlier` (in multiples of the tensor's largest element), and the maps: errors of
        the first moment, in percent; those of the second cancel out.
    """
    rows = []
    named = {"grid": context.several[0], "headline": context.states}
    if context.pretrained is not None:
        named["pretrained"] = context.pretrained
    for title, states in named.items():
        for outlier in OUTLIERS:
            total, count = Counter[str](), 0
            for _, m, _, _ in adam_pairs(states, MIN_SIZE):
                x = torch.cat([m.flatten(), outlier * m.abs().max().reshape(1)])
                kept = x[:-1] != 0
                count += int(kept.sum())
                for name, spec in NAMES.items():
                    decoded = qmaps.quantizer(f"tensor/{spec}@8s").quantize(x).dequantize()
                    off = ((decoded - x) / x)[:-1][kept].abs()
                    total[name] += float(off.double().sum())  # type: ignore[assignment]
            errors = {name: 100 * total[name] / count for name in NAMES}
            rows.append({"states": title, "outlier": outlier, **errors})
    return pd.DataFrame(rows)


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
        differences=[_order(frames["tails"])],
        why="Only the first moment is quantized, with one scale for a tensor; ± is the standard "
        "error over seeds. Absolute errors scale with a model's gradients, so that only their "
        "order can be compared. The mean relative error is ruled by updates near zero, which a "
        "linear map rounds to 0 (an error of 100 %), and in larger measure the longer the states' "
        "tails are; the median stands beside it. Quantiles fitted to the tensor itself, as they "
        "are here, do well where the elements are; inverse dynamic has few codes there.",
        why_ours="The paper's model has a thousand times our parameters.",
        tables={"by-seed": errors, "tails": frames["tails"]},
    )


def _order(tails: pd.DataFrame) -> Difference:
    """Whether other states, or longer tails, give the paper's order of the maps."""
    order = ["dynamic", "inverse dynamic", "quantile", "linear"]
    same = [bool(row[order].is_monotonic_increasing) for _, row in tails.iterrows()]
    worst = tails["quantile"].max()
    return Difference(
        f"The paper's order (dynamic, inverse dynamic, quantile, linear) comes out for {sum(same)} "
        f"of {len(same)} states and tails: small and larger models, pretrained weights too where "
        f"they are there, with outliers of 1 to {max(OUTLIERS):,} times the largest element. "
        "Quantiles fitted to the tensor never err by more than "
        f"{worst:.1f} %, and inverse dynamic passes them only where dynamic does not. A linear map "
        "that holds zero rounds no element to more than 100 % off, so that the paper's 201 % are "
        "of another setting than the one it describes, or of both moments.",
        any(same),
    )


EXHIBIT = Exhibit(
    name="table-6",
    covers=("Table 6",),
    title="Relative Adam error and absolute quantization error for the first Adam state",
    needs=Needs.STATES,
    source="states of {grid}",
    build=build,
    find=find,
    pretrained=True,
)
