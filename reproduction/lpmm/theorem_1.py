"""Theorem 1: the bound on convergence, beside runs."""

from __future__ import annotations

import pandas as pd

from reproduction import figures
from reproduction.claim import Claim
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.lpmm._underflow import DIGITS
from reproduction.numbers import number

ONE = ", N = 1"
NAMES = {r"^B2048/linear0@(\d+)s\+sr": r"\1 bits"}
"""The settings as the paper names them, by their bits."""
MOMENTUM = "momentum"
"""First words of the settings of the 4-bit paper's bound."""


def build(context: Context) -> Frames:
    """The committed runs; those of the 4-bit paper's bound are left out."""
    frame = context.table("lpmm/bound.csv", DIGITS)
    frame = frame[~frame["setting"].str.startswith(MOMENTUM)]
    return {"runs": frame.replace({"setting": NAMES}, regex=True)}


def means(runs: pd.DataFrame) -> pd.DataFrame:
    """Mean gap and bound of each `setting` and `step`."""
    return runs.groupby(["setting", "step"], sort=False)[["gap", "bound"]].mean().reset_index()


def find(frames: Frames) -> Finding:
    """Test the bound, and its change with N."""
    table = means(frames["runs"])
    statements = []
    last: dict[str, float] = {}
    for setting, part in table.groupby("setting", sort=False):
        share = float((part["gap"] / part["bound"]).max())
        last[str(setting)] = float(part["bound"].iloc[-1])
        statements.append(
            Claim(
                f"The mean over runs stays below the bound ({setting}).",
                share <= 1,
                f"At most {number(share)} times it.",
            )
        )
    several = next(name for name in last if not name.endswith(ONE))
    single = several.rpartition(", N = ")[0] + ONE
    statements.append(
        Claim(
            "With few bits, micro-batches make the bound tighter.",
            last[several] < last[single],
            f"After {table['step'].max()} steps {number(last[several])} ({several}) against "
            f"{number(last[single])} ({single}).",
        )
    )
    return Finding(
        statements=statements,
        why="LPMM-SGDM with parameters in linear0 and blocks of 2048, on a convex quadratic of 64 "
        "elements with noisy gradients; the bound takes the largest variances of rounding that "
        "the runs met. Half of the largest learning rate "
        "that the theorem states, which falls with N.",
        tables={"means": table},
    )


EXHIBIT = Exhibit(
    name="theorem-1",
    covers=("Theorem 1",),
    title="The bound on convergence beside runs",
    needs=Needs.REPORTS,
    build=build,
    find=find,
    draw=lambda frames: {"theorem-1": figures.convergence_bound(frames["runs"])},
    captions={
        "theorem-1": "Distance of f from its minimum at the mean of the iterates so far, with "
        "parameters in B2048/linear0@12s+sr and B2048/linear0@8s+sr. The runs hardly differ from "
        "their mean."
    },
    command=DIGITS,
)
