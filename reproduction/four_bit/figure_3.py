"""Figure 3: the zero-point problem."""

from __future__ import annotations

from qmaps import analyze, figures
from qmaps.lab.report.claim import Claim
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.numbers import percent

WITH, WITHOUT = "B128/DE@4u", "B128/DE-0@4u"


def build(context: Context) -> Frames:
    """Histograms of h(v)."""
    return {"histogram": analyze.inverse_sqrt(context.states, (WITH, WITHOUT))}


def find(frames: Frames) -> Finding:
    """How many elements fall to zero."""
    zeros = frames["histogram"].groupby("quantizer")["zero_share"].first()
    return Finding(
        statements=[
            Claim(
                "B128/DE pushes second moments to zero, and h(v) to 1e6.",
                bool(zeros[WITH] > 0),
                f"{percent(zeros[WITH])} of the elements.",
            ),
            Claim(
                "B128/DE-0 pushes none there.",
                bool(zeros[WITHOUT] == 0),
                f"{percent(zeros[WITHOUT])}.",
            ),
        ],
        why="The paper shows one tensor where most elements fall to zero; here are all tensors "
        "together.",
    )


EXHIBIT = Exhibit(
    name="figure-3",
    covers=("Figure 3",),
    title="Histogram of the inverse square root of second moments",
    needs=Needs.STATES,
    source="states of {headline}",
    build=build,
    find=find,
    draw=lambda frames: {"figure-3": figures.inverse_sqrt(frames["histogram"])},
    captions={"figure-3": "h(v) = 1 / (sqrt(v) + 1e-6) in 32 bits, with B128/DE and B128/DE-0."},
)
