"""APOLLO's subspace projection: how far it converges in as many steps."""

from __future__ import annotations

from qmaps.lab.report.claim import Claim
from reproduction.context import Context
from reproduction.differences import Difference
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.numbers import interval

COMMAND = "python -m benchmarks.apollo"
FACTORED, APOLLO = "factored", "APOLLO"


def build(context: Context) -> Frames:
    """The committed runs at the best rates."""
    runs = context.table("apollo.csv", COMMAND)
    return {"runs": runs[runs["part"] == "contest"].reset_index(drop=True)}


def find(frames: Frames) -> Finding:
    """The difference of the final losses, seed by seed."""
    runs = frames["runs"]
    losses = runs.pivot_table(values="loss", index="seed", columns="quantizer")
    apart = losses[APOLLO] - losses[FACTORED]
    found = interval(apart.tolist())
    judge, steps = runs["judge"].iloc[0], int(runs["steps"].iloc[0])
    return Finding(
        statements=[
            Claim(
                f"APOLLO's projection converges faster than factored second moments ({judge}, "
                f"{len(apart)} seeds).",
                found.high < 0 if found.high < 0 or found.low > 0 else (),
                f"After {steps} steps {found.mean:+.4f} ({found.low:+.4f} to {found.high:+.4f}), "
                f"of {losses[FACTORED].mean():.4f}.",
            )
        ],
        differences=[
            Difference(
                "The project's page says that it potentially does, and recommends rank 256 for "
                "models of 1e9 to 7e9 parameters. No control of ours says that a larger model "
                "would change it.",
                elsewhere=False,
            )
        ],
        why="The project's page compares it with Adafactor's row and column factorization, and "
        "gives no measurement. Faster: a lower validation loss after as many steps, each at its "
        "own best learning rate of a sweep, with the 95 % interval over seeds on one side of 0. "
        "The rank is a quarter of the model's width, and Fira's limiter is on.",
        tables={"runs": runs[["judge", "quantizer", "lr", "steps", "seed", "loss", "state_mib"]]},
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
