"""Figure 3: the zero-point problem."""

from __future__ import annotations

import pandas as pd

import qmaps
from qmaps import analyze, figures
from qmaps.lab.report.claim import Claim
from reproduction.context import Context
from reproduction.differences import Difference
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.four_bit._matrices import matrices
from reproduction.four_bit._names import renamed
from reproduction.numbers import percent

WITH, WITHOUT = "B128/DE@4u", "B128/DE-0@4u"


def build(context: Context) -> Frames:
    """Histograms of h(v), and how many elements of each matrix fall to zero."""
    second = matrices(context.states, "exp_avg_sq")
    rows = [
        {
            "tensor": title,
            "quantizer": spec,
            "zeroed": qmaps.quantizer(spec).error(v)["zeroed_share"],
            "zeroed_twice_the_decades": qmaps.quantizer(spec).error(v / v.max() * v)[
                "zeroed_share"
            ],
        }
        for title, v in second.items()
        for spec in (WITH, WITHOUT)
    ]
    frame = analyze.inverse_sqrt(context.states, (WITH, WITHOUT))
    return {"histogram": frame, "shares": pd.DataFrame(rows)}


def find(frames: Frames) -> Finding:
    """How many elements fall to zero."""
    shares = frames["shares"].groupby("quantizer")
    most, wider = shares["zeroed"].max(), shares["zeroed_twice_the_decades"].max()
    together = frames["histogram"].groupby("quantizer")["zero_share"].first()
    return Finding(
        statements=[
            Claim(
                "B128/DE pushes most second moments of a tensor to zero, and their h(v) to 1e6.",
                bool(most[WITH] > 0.5),
                f"At most {percent(most[WITH])} of a matrix; {percent(together[WITH])} of all.",
            ),
            Claim(
                "B128/DE-0 pushes none there.",
                bool(most[WITHOUT] == 0),
                f"{percent(most[WITHOUT])}.",
            ),
        ],
        differences=[
            Difference(
                "Where the same matrices span twice as many decades (squared), up to "
                f"{percent(wider[WITH])} of one fall to zero, and with B128/DE-0 "
                f"{percent(wider[WITHOUT])}.",
                bool(wider[WITH] > 0.5),
                "^B128/DE pushes",
            )
        ],
        why="The paper shows one tensor where most elements fall to zero; the figure has all "
        "tensors together. Elements that are 0 already do not count.",
        tables={"shares": frames["shares"]},
    )


EXHIBIT = Exhibit(
    name="figure-3",
    covers=("Figure 3",),
    title="Histogram of the inverse square root of second moments",
    needs=Needs.STATES,
    source="states of {headline}",
    build=build,
    find=find,
    draw=lambda frames: {
        "figure-3": figures.inverse_sqrt(renamed(frames["histogram"], "quantizer"))
    },
    captions={
        "figure-3": "h(v) = 1 / (sqrt(v) + 1e-6) in 32 bits, with B128/DE@4u and with "
        "B128/DE-0@4u; all tensors together."
    },
)
