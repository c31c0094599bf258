"""Table 2: approximation errors of the four data types."""

from __future__ import annotations

import pandas as pd

from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.verdict import beside

COMMAND = "python -m benchmarks.approximation"
QUANTITIES = {"abs": "mean absolute error", "rel": "mean relative error (%)"}


def build(context: Context) -> Frames:
    """The committed table, which holds the paper's numbers too."""
    return {"errors": context.table("approximation.csv", COMMAND)}


def find(frames: Frames) -> Finding:
    """Types are compared on the same data."""
    errors = frames["errors"]
    errors = errors[~errors["type"].str.contains(",")]  # other readings of a type
    parts = []
    for kind, quantity in QUANTITIES.items():
        parts.append(
            pd.DataFrame(
                {
                    "what": errors["type"],
                    "quantity": quantity + ", " + errors["data"],
                    "unit": "",
                    "paper": errors[f"paper_{kind}"],
                    "paper_spread": float("nan"),
                    "ours": errors[f"mean_{kind}_error"],
                }
            )
        )
    rows = pd.concat(parts, ignore_index=True)
    ours = {(str(row.what), str(row.quantity)): float(str(row.ours)) for row in rows.itertuples()}
    return Finding(
        numbers=beside(rows.drop(columns="ours"), ours),
        why="With exact rounding to the nearest value errors are smaller than the paper's "
        "throughout; their order is what can be reproduced. The page of the command, "
        "reports/approximation.md, explains the rest.",
    )


EXHIBIT = Exhibit(
    name="table-2",
    covers=("Table 2",),
    title="Approximation errors of the four 8-bit data types",
    needs=Needs.REPORTS,
    build=build,
    find=find,
    command=COMMAND,
)
