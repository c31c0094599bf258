"""Table 2: optimizers on different tasks."""

from __future__ import annotations

from qmaps.papers import committed
from qmaps.papers.context import Context
from qmaps.papers.exhibit import Exhibit, Finding, Frames, Needs, Statement
from qmaps.papers.published import published
from qmaps.papers.verdict import beside

ROWS = {
    "32-bit AdamW": ("AdamW", "32bit"),
    "Adafactor": ("Adafactor", "32bit"),
    "SM3": ("SM3", "32bit"),
    "8-bit AdamW": ("AdamW", "8bit"),
    "4-bit AdamW": ("AdamW", "4bit"),
    "4-bit Factor": ("AdamWFactor", "4bit"),
}
CLOSE = 0.02


def build(context: Context) -> Frames:
    """The rows of the table of parity."""
    return {"parity": committed.parity(context)}


def find(frames: Frames) -> Finding:
    """Losses in place of the paper's metrics."""
    found = committed.by_key(frames["parity"])
    ours: dict[tuple[str, str], tuple[float, float]] = {}
    statements = []
    for workload in frames["parity"]["workload"].unique():
        quantity = f"validation loss, {workload}"
        for name, key in ROWS.items():
            row = found[workload, *key]
            ours[name, quantity] = (row["loss"], row["error"])
        base, base_error = ours["32-bit AdamW", quantity]
        for name in ("8-bit AdamW", "4-bit AdamW", "4-bit Factor"):
            loss = ours[name, quantity][0]
            statements.append(
                Statement(
                    f"{name} ends where 32-bit AdamW does ({workload}).",
                    loss - base < max(CLOSE * base, 2 * base_error),
                    f"{loss:.4f} against {base:.4f} ± {base_error:.4f}.",
                )
            )
    return Finding(
        numbers=beside(published("4-bit-optimizers", EXHIBIT.name), ours),
        statements=statements,
        why="The paper's tasks need pretrained models and data that cannot be had here; ours are "
        "losses (lower is better) after training small models from scratch, ± the standard error "
        "over seeds. In runs so short a 4-bit first moment that is rounded to nearest moves late; "
        "rounded stochastically the difference is gone (reports/parity-first-moment.md).",
    )


EXHIBIT = Exhibit(
    name="table-2",
    covers=("Table 2",),
    title="Optimizers on language and vision tasks",
    needs=Needs.REPORTS,
    build=build,
    find=find,
    command=committed.PARITY,
)
