"""Figure 2: how far parameters move in units of delta."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
from matplotlib.figure import Figure

from reproduction import figures
from reproduction.claim import Claim
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.lpmm._ablation import NEAREST, STOCHASTIC
from reproduction.lpmm._underflow import COMMAND, LAYERS, PRINTED, WORKLOADS, tables
from reproduction.numbers import number

LATE = 0.8
"""Start of late training, as a share of the run."""
HARDLY = 0.1
"""Largest share of the distance between codes of a parameter that hardly moves."""


def build(context: Context) -> Frames:
    """The committed curves."""
    return {"ratios": tables(context, "bin-changes.csv")}


def late(ratios: pd.DataFrame) -> pd.DataFrame:
    """Means over matrices and over late training: a row per width, a column per setting."""
    part = ratios[ratios["step"] > LATE * ratios["step"].max()]
    table: pd.DataFrame = part.pivot_table(
        index="width", columns="setting", values="bin_change", sort=False
    )
    table.columns.name = None
    return table


def find(frames: Frames) -> Finding:
    """Means of the curves' ends."""
    parts = {str(name): late(rows) for name, rows in frames["ratios"].groupby("workload")}
    return Finding(
        statements=[statement for name, table in parts.items() for statement in _of(name, table)],
        why="The four largest matrices of each net, gradients and momentum in 8 bits. Numbers: "
        f"means over these and over the last {1 - LATE:.0%} of training. Hardly: less than "
        f"{HARDLY:g} delta on average; significantly: more than twice. A parameter also moves a "
        "little where its scale changes, rounded to nearest too.",
        tables={"late": pd.concat(parts, names=["workload"]).reset_index()},
    )


def _of(workload: str, table: pd.DataFrame) -> list[Claim]:
    """The paper's statements, on one workload."""
    several = next(name for name in table.columns if name not in (NEAREST, STOCHASTIC))
    fewest, lowest = str(table.index[-1]), float(table[NEAREST].iloc[-1])
    by_width = {str(name): table[name] for name in table.columns}
    statements = [
        Claim(
            f"Rounding to nearest makes the smallest actual updates ({width}).",
            bool(row[NEAREST] < row.drop(NEAREST).min()),
            ", ".join(f"{name} {number(value)}" for name, value in row.items()) + ".",
        )
        for width, row in table.iterrows()
    ]
    statements += [
        Claim(
            f"With fewest bits it hardly updates the parameters ({fewest}).",
            lowest < HARDLY,
            f"By {number(lowest)} of the distance between codes.",
        ),
        Claim(
            "Fewer bits make updates smaller in units of delta.",
            all(bool(column.is_monotonic_decreasing) for column in by_width.values()),
            "; ".join(
                f"{name}: " + ", ".join(number(value) for value in column)
                for name, column in by_width.items()
            )
            + f" ({', '.join(map(str, table.index))}).",
        ),
        Claim(
            "Micro-batches make updates significantly larger.",
            bool((table[several] > 2 * table[STOCHASTIC]).all()),
            f"{several}, times those of one: "
            + ", ".join(number(value) for value in table[several] / table[STOCHASTIC])
            + ".",
        ),
    ]
    return [
        replace(statement, text=f"{statement.text[:-1]} ({workload}).") for statement in statements
    ]


def pictures(frames: Frames) -> dict[str, Figure]:
    """A figure for each workload."""
    return {
        f"figure-2-{name}": figures.bin_changes(
            rows.replace({"setting": PRINTED, "parameter": LAYERS})
        )
        for name, rows in frames["ratios"].groupby("workload", sort=False)
    }


EXHIBIT = Exhibit(
    name="figure-2",
    covers=("Figure 2",),
    title="The magnitude of parameter updates in units of delta",
    needs=Needs.REPORTS,
    build=build,
    find=find,
    draw=pictures,
    captions={
        f"figure-2-{name}": f"{name}, one seed. Steps are micro-batches, and a point is a mean "
        "over some of them. Deterministic: rounded to nearest."
        for name in WORKLOADS
    },
    command=COMMAND,
)
