"""APOLLO's subspace projection: how far it converges in as many steps."""

from __future__ import annotations

from scipy import stats

from qmaps.lab.report.claim import Claim
from reproduction.context import Context
from reproduction.differences import Difference
from reproduction.exhibit import Exhibit, Finding, Frames, Needs

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
    mean = float(apart.mean())
    error = float(stats.sem(apart.to_numpy(float)))
    half = float(stats.t.ppf(0.975, len(apart) - 1)) * error
    judge, steps = runs["judge"].iloc[0], int(runs["steps"].iloc[0])
    return Finding(
        statements=[
            Claim(
                f"APOLLO's projection converges faster than factored second moments ({judge}, "
                f"{len(apart)} seeds).",
                mean + half < 0 if abs(mean) > half else (),
                f"After {steps} steps {mean:+.4f} ({mean - half:+.4f} to {mean + half:+.4f}), of "
                f"{losses[FACTORED].mean():.4f}.",
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
