"""Theorem 1 (appendix H): the bound on convergence of SGD with a quantized momentum."""

from __future__ import annotations

from reproduction import figures
from reproduction.claim import Claim
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.lpmm._underflow import DIGITS
from reproduction.lpmm.theorem_1 import MOMENTUM, means
from reproduction.numbers import number

NAMES = {"momentum B128/DE@4s+sr": "4-bit momentum"}
"""The settings as the page names them."""


def build(context: Context) -> Frames:
    """The committed runs with a quantized momentum."""
    runs = context.table("lpmm/bound.csv", DIGITS)
    runs = runs[runs["setting"].str.startswith(MOMENTUM)].reset_index(drop=True)
    return {"runs": runs.replace({"setting": NAMES})}


def find(frames: Frames) -> Finding:
    """Test the bound, and its distance."""
    runs = frames["runs"]
    table = means(runs)
    statements = [
        Claim(
            f"The mean over runs stays below the bound ({setting}).",
            bool((part["gap"] <= part["bound"]).all()),
            f"After {part['step'].max()} steps {number(part['gap'].iloc[-1])}, bound "
            f"{number(part['bound'].iloc[-1])}, "
            f"{number(part['bound'].iloc[-1] / part['gap'].iloc[-1])} times it.",
        )
        for setting, part in table.groupby("setting", sort=False)
    ]
    return Finding(
        statements=statements,
        why="SGD whose momentum is kept in 4 bits and rounded stochastically (B128/DE@4s+sr), "
        f"on a convex quadratic of 64 elements with noisy gradients ({runs['seed'].nunique()} "
        "seeds); the bound takes "
        "the largest variance of rounding that the runs met.",
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
        "theorem-1": "Distance of f from its minimum at the mean of the iterates so far. The "
        "momentum is B128/DE@4s+sr."
    },
    command=DIGITS,
)
