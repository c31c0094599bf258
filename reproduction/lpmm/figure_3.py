"""Figure 3: the distribution of updates."""

from __future__ import annotations

import numpy as np
import pandas as pd

from qmaps import figures
from qmaps.lab.report.claim import Claim
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.lpmm.figure_2 import COMMAND
from reproduction.numbers import percent

HALF, EIGHTH = 0.5, 0.125


def build(context: Context) -> Frames:
    """The committed histogram."""
    return {"updates": context.table("lpmm/update-histogram.csv", COMMAND)}


def below(updates: pd.DataFrame) -> pd.DataFrame:
    """`width`, `N`, and the shares of updates below delta / 2 and delta / 8."""
    rows = []
    for (width, n), part in updates.groupby(["width", "N"], sort=False):
        cumulative = {
            name: float(part.loc[np.isclose(part["bin_right"], edge), "cumulative"].iloc[0])
            for name, edge in (("below_half", HALF), ("below_eighth", EIGHTH))
        }
        rows.append({"width": width, "N": n, **cumulative})
    return pd.DataFrame(rows)


def find(frames: Frames) -> Finding:
    """Shares of small updates."""
    table = below(frames["updates"])
    one, several = (table[table["N"] == n].set_index("width") for n in sorted(table["N"].unique()))
    n = int(several["N"].iloc[0])
    statements = [
        Claim(
            f"Without micro-batches more than half of the updates are below delta / 2 ({width}).",
            bool(row["below_half"] > HALF),
            f"{percent(row['below_half'])}; the paper has about 60 % for one of its widths.",
        )
        for width, row in one.iterrows()
    ]
    for column, name in (("below_half", "delta / 2"), ("below_eighth", "delta / 8")):
        statements.append(
            Claim(
                f"Micro-batches reduce the updates below {name}.",
                bool((several[column] < one[column]).all()),
                "; ".join(
                    f"{width}: {percent(one.at[width, column])} with N = 1, "
                    f"{percent(several.at[width, column])} with N = {n}"
                    for width in one.index
                )
                + ".",
            )
        )
    return Finding(
        statements=statements,
        why="The largest parameter of digits' net under stochastic rounding, in the middle fifth "
        "of training. The paper's shares, about 60 % below delta / 2 and 20 % below delta / 8, are "
        "of one layer of ResNet-18; the text does not tell of how many bits. Updates of exactly 0 "
        "are counted.",
        tables={"below": table},
    )


EXHIBIT = Exhibit(
    name="figure-3",
    covers=("Figure 3",),
    title="The distribution of the magnitude of updates",
    needs=Needs.REPORTS,
    build=build,
    find=find,
    draw=lambda frames: {"figure-3": figures.update_histogram(frames["updates"])},
    captions={"figure-3": "Bars: share of elements in an octave; the first holds all below it."},
    command=COMMAND,
)
