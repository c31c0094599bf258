"""Figure 4: use and error over pairs of codes."""

from __future__ import annotations

import numpy as np
import pandas as pd

from qmaps import analyze, figures
from reproduction.claim import Claim
from reproduction.context import Context
from reproduction.eight_bit._maps import both
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.numbers import number, percent

PAIRS = {
    "linear": both("linear"),
    "dynamic": both("dynamic"),
    "block-wise dynamic": both("dynamic", "B2048"),
}
LARGE = 0.1
"""A pair of codes errs much if its updates are off by more than this share of themselves."""


def build(context: Context) -> Frames:
    """Use and errors of every pair of codes."""
    return {"cells": analyze.code_pairs(context.states, PAIRS.values())}


def summary(cells: pd.DataFrame) -> pd.DataFrame:
    """For each pair of quantizers: cells in use, their spread, and the overlap.

    Returns:
        `quantizer`, `pairs_in_use` (of codes), `evenly_used` (number of equally frequent pairs of
        codes with this entropy), `in_large_errors` (share of elements in pairs of codes with a mean
        relative error above `LARGE`), `mean_abs_error`.
    """
    rows = []
    for name, spec in PAIRS.items():
        part = cells[cells["quantizer"] == spec]
        use = part["use"].to_numpy()
        rows.append(
            {
                "quantizer": name,
                "pairs_in_use": len(part),
                "evenly_used": float(np.exp(-(use * np.log(use)).sum())),
                "in_large_errors": float(use[part["mean_rel_error"].to_numpy() > LARGE].sum()),
                "mean_abs_error": float((use * part["mean_abs_error"].to_numpy()).sum()),
            }
        )
    return pd.DataFrame(rows)


def find(frames: Frames) -> Finding:
    """Overlap and spread, in the paper's order."""
    table = summary(frames["cells"])
    rows = table.set_index("quantizer")
    overlap, spread = rows["in_large_errors"], rows["evenly_used"]
    shares = ", ".join(f"{name} {percent(value)}" for name, value in overlap.items())
    return Finding(
        statements=[
            Claim(
                "Linear quantization has the largest overlap of high use and high error.",
                bool(overlap.idxmax() == "linear"),
                f"Elements in pairs of codes that err by more than {percent(LARGE)}: {shares}.",
            ),
            Claim(
                "Block-wise dynamic quantization has the smallest.",
                bool(overlap.idxmin() == "block-wise dynamic"),
            ),
            Claim(
                "Block-wise quantization spreads use over more pairs of codes than per tensor.",
                bool(spread["block-wise dynamic"] > spread["dynamic"]),
                f"As many as {number(spread['block-wise dynamic'])} pairs evenly used, against "
                f"{number(spread['dynamic'])}.",
            ),
        ],
        tables={"summary": table},
    )


EXHIBIT = Exhibit(
    name="figure-4",
    covers=("Figure 4",),
    title="Use, absolute and relative error of the Adam update over pairs of codes",
    needs=Needs.STATES,
    source="states of {headline}",
    build=build,
    find=find,
    draw=lambda frames: {
        "figure-4": figures.code_pairs(
            frames["cells"].replace({"quantizer": {spec: name for name, spec in PAIRS.items()}})
        )
    },
    captions={
        "figure-4": "; ".join(f"{name}: {spec}" for name, spec in PAIRS.items())
        + ". Grey: never used."
    },
)
