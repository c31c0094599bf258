"""Figure 3: the distribution of updates."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from reproduction import figures
from reproduction.claim import Claim
from reproduction.context import Context
from reproduction.differences import Difference
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.lpmm._underflow import COMMAND, WORKLOADS, tables
from reproduction.numbers import percent

HALF, EIGHTH = 0.5, 0.125


def build(context: Context) -> Frames:
    """The committed histograms, and how many elements never get an update."""
    return {"updates": tables(context, "update-histogram.csv")}


def below(updates: pd.DataFrame) -> pd.DataFrame:
    """The shares of updates below delta / 2 and delta / 8.

    Returns:
        `workload`, `width`, `N`, `below_half`, `below_eighth`, and `smallest`: the share in the
        first bin, of updates equal to 0 or close to it.
    """
    rows = []
    for key, part in updates.groupby(["workload", "width", "N"], sort=False):
        cumulative = {
            name: float(part.loc[np.isclose(part["bin_right"], edge), "cumulative"].iloc[0])
            for name, edge in (("below_half", HALF), ("below_eighth", EIGHTH))
        }
        smallest = float(part["cumulative"].min())
        workload, width, n = key
        row = {"workload": workload, "width": width, "N": n, **cumulative, "smallest": smallest}
        rows.append(row)
    return pd.DataFrame(rows)


def find(frames: Frames) -> Finding:
    """Shares of small updates."""
    table = below(frames["updates"])
    parts = {str(name): rows for name, rows in table.groupby("workload", sort=False)}
    return Finding(
        statements=[statement for name, rows in parts.items() for statement in _of(name, rows)],
        differences=[_unused(name, rows) for name, rows in parts.items()],
        why="The largest parameter of each net under stochastic rounding, in the middle fifth of "
        "training. The paper's shares, about 60 % below delta / 2 and 20 % below delta / 8, are of "
        "one layer of ResNet-18; the text does not tell of how many bits. Updates of exactly 0 are "
        "counted.",
        tables={"below": table},
    )


def _of(workload: str, table: pd.DataFrame) -> list[Claim]:
    """The paper's statements, on one workload."""
    single, several = (
        table[table["N"] == n].set_index("width") for n in sorted(table["N"].unique())
    )
    n = int(several["N"].iloc[0])
    below_half = single["below_half"]
    statements = [
        Claim(
            "Without micro-batches more than half of the updates are below delta / 2, at one width "
            f"at least ({workload}).",
            bool((below_half > HALF).any()),
            ", ".join(f"{width} {percent(share)}" for width, share in below_half.items())
            + "; the paper has about 60 % for one of its widths.",
        )
    ]
    for column, name in (("below_half", "delta / 2"), ("below_eighth", "delta / 8")):
        statements.append(
            Claim(
                f"Micro-batches reduce the updates below {name} ({workload}).",
                bool((several[column] < single[column]).all()),
                "; ".join(
                    f"{width}: {percent(single.at[width, column])} with N = 1, "
                    f"{percent(several.at[width, column])} with N = {n}"
                    for width in single.index
                )
                + ".",
            )
        )
    return statements


def _unused(workload: str, table: pd.DataFrame) -> Difference:
    """Test if elements without updates make the difference."""
    share = table["smallest"].min()
    return Difference(
        f"The largest parameter of {workload} has {percent(share)} of its updates in the first "
        "bin, whatever the width and N: rows of an embedding whose bytes never come, which no "
        "layer of ResNet-18 has. Micro-batches cannot change these.",
        bool(share > HALF),
        f"[(]{workload}",
    )


def pictures(frames: Frames) -> dict[str, Figure]:
    """A figure for each workload."""
    return {
        f"figure-3-{name}": figures.update_histogram(rows)
        for name, rows in frames["updates"].groupby("workload", sort=False)
    }


EXHIBIT = Exhibit(
    name="figure-3",
    covers=("Figure 3",),
    title="The distribution of the magnitude of updates",
    needs=Needs.REPORTS,
    build=build,
    find=find,
    draw=pictures,
    captions={
        f"figure-3-{name}": f"{name}, one seed, rounded stochastically. A bar is the share of "
        "elements in an octave; the first bar holds all updates below it, those of 0 too."
        for name in WORKLOADS
    },
    command=COMMAND,
)
