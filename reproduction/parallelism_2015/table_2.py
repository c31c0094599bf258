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
    """Types are compared on the same data, rounded as the author's program does."""
    errors = frames["errors"]
    errors = errors[errors["type"] != "static tree"]  # that of three levels
    ours = {
        (str(row["type"]).removesuffix(", 4 levels"), f"{quantity}, {row['data']}"): float(
            row[f"search_{kind}_error"]
        )
        for kind, quantity in QUANTITIES.items()
        for row in errors.to_dict("records")
    }
    return Finding(
        numbers=beside(published("8-bit-parallelism-2015", EXHIBIT.name), ours),
        why="Numbers become what the search of the author's program finds, which cuts every second "
        "gap off instead of rounding; with the nearest value, which this project's types take, "
        "errors are two thirds of these. The static tree has four levels here, where the paper's "
        "example has three. The layers are those of another net after a short training: their "
        "numbers differ. reports/approximation.md has both ways of rounding.",
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
