"""Table 2: approximation errors of the four data types."""

from __future__ import annotations

from qmaps.lab.report.published import published
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.verdict import beside

COMMAND = "python -m benchmarks.approximation"
QUANTITIES = {"abs": "mean absolute error", "rel": "mean relative error (%)"}


def build(context: Context) -> Frames:
    """The committed table."""
    return {"errors": context.table("approximation.csv", COMMAND)}


def find(frames: Frames) -> Finding:
    """Types are compared on the same data."""
    errors = frames["errors"]
    errors = errors[~errors["type"].str.contains(",")]  # other readings of a type
    ours = {
        (str(row["type"]), f"{quantity}, {row['data']}"): float(row[f"mean_{kind}_error"])
        for kind, quantity in QUANTITIES.items()
        for row in errors.to_dict("records")
    }
    return Finding(
        numbers=beside(published("8-bit-parallelism-2015", EXHIBIT.name), ours),
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
