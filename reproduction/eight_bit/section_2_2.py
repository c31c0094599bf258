"""Section 2.2: how many orders of magnitude second moments span."""

from __future__ import annotations

import pandas as pd
import torch

from qmaps.analyze.states import MIN_SIZE, adam_pairs
from qmaps.capture import CapturedStates
from reproduction.claim import Claim
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.numbers import number

MANY, FEW = 0.999, 0.001
"""Quantiles of the elements other than 0; the decades between them are counted."""
LOW, HIGH = 3.0, 5.0
"""Orders of magnitude, as the paper says."""


def build(context: Context) -> Frames:
    """Decades of every second moment, and of all of them together."""
    named = {"headline": context.states}
    if context.pretrained is not None:
        named["pretrained"] = context.pretrained
    return {"decades": pd.concat([_decades(*pair) for pair in named.items()], ignore_index=True)}


def _decades(title: str, states: CapturedStates) -> pd.DataFrame:
    """`states`, `tensor` ("all" for all together), `decades`, `zeros` (share of elements)."""
    second = {name: v.flatten() for name, _, v, _ in adam_pairs(states, MIN_SIZE)}
    second["all"] = torch.cat(list(second.values()))
    rows = []
    for name, v in second.items():
        ascending = v[v > 0].sort().values
        low, high = (ascending[round(q * (ascending.numel() - 1))].item() for q in (FEW, MANY))
        decades = float(torch.tensor(high / low).log10())
        zeros = float((v == 0).float().mean())
        rows.append({"states": title, "tensor": name, "decades": decades, "zeros": zeros})
    return pd.DataFrame(rows)


def find(frames: Frames) -> Finding:
    """Compare the middle of the tensors with the paper's."""
    statements = []
    for title, rows in frames["decades"].groupby("states", sort=False):
        single = rows[rows["tensor"] != "all"]["decades"]
        together = float(rows.loc[rows["tensor"] == "all", "decades"].iloc[0])
        middle = float(single.median())
        statements.append(
            Claim(
                "The second state varies around 3 to 5 orders of magnitude"
                + (" (pretrained)." if title == "pretrained" else "."),
                LOW <= middle <= HIGH,
                f"{number(middle)} in the median of {len(single)} tensors, {number(single.min())} "
                f"to {number(single.max())}; all together {number(together)}.",
            )
        )
    return Finding(
        statements=statements,
        why=f"Orders of magnitude between the smallest {FEW:.1%} and the largest {1 - MANY:.1%} of "
        "the elements that are not 0.",
        tables={"decades": frames["decades"]},
    )


EXHIBIT = Exhibit(
    name="section-2-2",
    covers=("Section 2.2",),
    title="Orders of magnitude of second moments",
    needs=Needs.STATES,
    source="states of {headline}",
    build=build,
    find=find,
    pretrained=True,
)
