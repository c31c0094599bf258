"""APOLLO's subspace projection: how far it converges in as many steps."""

from __future__ import annotations

import pandas as pd

from reproduction.claim import Claim
from reproduction.context import Context
from reproduction.differences import Difference
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.numbers import Interval, interval
from reproduction.report_file import closed

COMMAND = closed("python -m benchmarks.apollo")
FACTORED, APOLLO = "factored", "APOLLO"
CONTROLS = {
    "APOLLO, full rank": "of the full rank",
    "APOLLO, blocks only": "of the blocks' matrices alone",
    "APOLLO, full rank, blocks only": "of the full rank and of the blocks' matrices alone",
}
"""Rows of the table, and their projections."""


def build(context: Context) -> Frames:
    """The committed runs at the best rates."""
    runs = context.table("apollo.csv", COMMAND)
    return {"runs": runs[runs["part"] == "contest"].reset_index(drop=True)}


def find(frames: Frames) -> Finding:
    """The difference of the final losses, seed by seed."""
    runs = frames["runs"]
    losses = runs.pivot_table(values="loss", index="seed", columns="quantizer")
    behind = {name: _behind(losses, name) for name in (APOLLO, *CONTROLS)}
    behind_full = behind[APOLLO]
    workload, steps = runs["judge"].iloc[0], int(runs["steps"].iloc[0])
    return Finding(
        statements=[
            Claim(
                f"APOLLO's projection converges faster than factored second moments ({workload}, "
                f"{len(losses)} seeds).",
                behind_full.high < 0 if behind_full.high < 0 or behind_full.low > 0 else (),
                f"After {steps} steps {_said(behind_full)}, of {losses[FACTORED].mean():.4f}.",
            )
        ],
        differences=[_difference(behind)],
        why="The project's page compares it with Adafactor's row and column factorization, and "
        "gives no measurement. Faster: a lower validation loss after as many steps, each at its "
        "own best learning rate of a sweep, with the 95 % interval over seeds on one side of 0. "
        "The rank is a quarter of the model's width, and Fira's limiter is on.",
        tables={"runs": runs[["judge", "quantizer", "lr", "steps", "seed", "loss", "state_mib"]]},
    )


def _behind(losses: pd.DataFrame, name: str) -> Interval:
    """Final loss minus the loss with factored second moments, seed by seed."""
    return interval((losses[name] - losses[FACTORED]).tolist())


def _said(behind: Interval) -> str:
    return f"{behind.mean:+.4f} ({behind.low:+.4f} to {behind.high:+.4f})"


def _difference(behind: dict[str, Interval]) -> Difference:
    """The difference by a control: one ends lower than factored second moments, or none does."""
    said = "; ".join(f"{text} {_said(behind[name])}" for name, text in CONTROLS.items())
    ahead = any(behind[name].high < 0 for name in CONTROLS)
    return Difference(
        f"Projections end behind factored second moments by {_said(behind[APOLLO])} at a rank of a "
        f"quarter of the width; {said}. So the low rank, and the projection of the embeddings and "
        "the output layer, make nearly all of the difference, "
        + (
            "and without them the claim holds. "
            if ahead
            else "but without both of them the projection does not end lower either. "
        )
        + "The project's page says that it potentially does, and recommends rank 256 for models of "
        "1e9 to 7e9 parameters.",
        elsewhere=ahead,
    )


EXHIBIT = Exhibit(
    name="apollo",
    covers=("APOLLO Subspace Projection with Fira Limiter",),
    title="Losses with projected and with factored second moments",
    needs=Needs.REPORTS,
    build=build,
    find=find,
    command=COMMAND,
    place=5,
)
