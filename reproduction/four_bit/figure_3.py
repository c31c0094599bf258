"""Figure 3: the zero-point problem."""

from __future__ import annotations

import pandas as pd

import qmaps
from qmaps import analyze, figures
from qmaps.capture import CapturedStates
from reproduction.claim import Claim
from reproduction.context import Context
from reproduction.differences import Difference
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.four_bit import _pretrained
from reproduction.four_bit._matrices import matrices
from reproduction.four_bit._names import renamed
from reproduction.numbers import percent

WITH, WITHOUT = "B128/DE@4u", "B128/DE-0@4u"
HALF = 0.5
"""More than this share is most of a tensor."""
TIMES = 10
"""A share so many times as large in another model shows an effect of the model."""


def build(context: Context) -> Frames:
    """Histograms of h(v), and how many elements of each matrix fall to zero."""
    frame = analyze.inverse_sqrt(context.states, (WITH, WITHOUT))
    frames = {"histogram": frame, "shares": _shares(context.states)}
    if context.pretrained is not None:
        frames[_pretrained.PREFIX + "shares"] = _shares(context.pretrained)
    return frames


def _shares(states: CapturedStates) -> pd.DataFrame:
    """The share of elements quantized to zero, for each matrix."""
    second = matrices(states, "exp_avg_sq")
    return pd.DataFrame(
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
    )


def find(frames: Frames) -> Finding:
    """Compare the share of elements quantized to zero."""
    shares = frames["shares"].groupby("quantizer")
    largest, wider = shares["zeroed"].max(), shares["zeroed_twice_the_decades"].max()
    together = frames["histogram"].groupby("quantizer")["zero_share"].first()
    return Finding(
        statements=[
            Claim(
                "B128/DE pushes most second moments of a tensor to zero, and their h(v) to 1e6.",
                bool(largest[WITH] > HALF),
                f"At most {percent(largest[WITH])} of a matrix; {percent(together[WITH])} of all.",
            ),
            Claim(
                "B128/DE-0 pushes none there.",
                bool(largest[WITHOUT] == 0),
                f"{percent(largest[WITHOUT])}.",
            ),
        ],
        differences=[_model(frames, float(largest[WITH]), float(wider[WITH]))],
        why="The paper shows one tensor where most elements fall to zero; the figure has all "
        "tensors together. Elements that are 0 already do not count.",
        why_ours=_pretrained.note(frames),
        tables={name: frame for name, frame in frames.items() if name != "histogram"},
    )


def _model(frames: Frames, largest: float, wider: float) -> Difference:
    """Test if another model has many times as many elements quantized to zero."""
    shares = frames.get(_pretrained.PREFIX + "shares")
    zeroed = 0.0 if shares is None else float(shares.groupby("quantizer")["zeroed"].max()[WITH])
    said = (
        f"In matrices of {_pretrained.MODEL}, pretrained and fine-tuned, up to {percent(zeroed)} "
        "of one fall to zero, so that the model decides how many do. "
        if zeroed > TIMES * largest
        else ""
    )
    return Difference(
        f"{said}Where the same matrices span twice as many decades (squared), up to "
        f"{percent(wider)} of one do.",
        zeroed > TIMES * largest or wider > HALF,
        "^B128/DE pushes",
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
    pretrained=True,
)
