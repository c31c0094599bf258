"""Table 1: metric, time, and memory saved."""

from __future__ import annotations

import pandas as pd

from qmaps.papers import committed
from qmaps.papers.context import Context
from qmaps.papers.exhibit import Exhibit, Finding, Frames, Needs, Statement
from qmaps.papers.memory import FACTORED, GIB, architectures, quantizers
from qmaps.papers.published import published
from qmaps.papers.verdict import beside

MODELS = {
    "RoBERTa-large": ("RoBERTa-large", "AdamW", False),
    "Transformer-1.5B": ("GPT-2 XL", "Adam", True),
    "GPT3-Medium": ("GPT-2 Medium", "Adam", True),
    "RoBERTa-base": ("RoBERTa-base", "Adam", True),
}
"""The model whose shapes stand for the paper's, and whether it has a stable embedding."""
ROWS = {
    "32-bit AdamW": ("AdamW", "32bit"),
    "Adafactor": ("Adafactor", "32bit"),
    "8-bit AdamW": ("AdamW", "8bit"),
    "32-bit Momentum": ("SGD", "32bit"),
    "8-bit Momentum": ("SGD", "8bit"),
}
CLOSE = 0.02


def build(context: Context) -> Frames:
    """Bytes saved, from shapes; losses, from the table of parity."""
    rows = []
    for name, (shapes, optimizer, stable) in MODELS.items():
        model = architectures()[shapes]
        full = model.states(quantizers("32bit"))
        low = model.states(quantizers("paper-8bit"), stable_embedding=stable)
        factored = model.states({"exp_avg": None, "exp_avg_sq": FACTORED})
        rows += [
            {"what": f"{name}: Adafactor", "saved_gib": (full - factored) / GIB},
            {"what": f"{name}: 8-bit {optimizer}", "saved_gib": (full - low) / GIB},
        ]
    return {"saved": pd.DataFrame(rows), "parity": committed.parity(context)}


def find(frames: Frames) -> Finding:
    """Memory beside the paper's; losses in place of its metrics."""
    ours: dict[tuple[str, str], float | tuple[float, float]] = {
        (str(row.what), "memory saved"): float(str(row.saved_gib))
        for row in frames["saved"].itertuples()
    }
    found = committed.by_key(frames["parity"])
    statements = []
    for workload in frames["parity"]["workload"].unique():
        for name, key in ROWS.items():
            row = found[workload, *key]
            ours[name, f"validation loss, {workload}"] = (row["loss"], row["error"])
            ours[name, f"state (MiB), {workload}"] = row["state_mib"]
        for optimizer in ("AdamW", "SGD"):
            full = found[workload, optimizer, "32bit"]
            low = found[workload, optimizer, "8bit"]["loss"]
            statements.append(
                Statement(
                    f"8-bit {optimizer} matches 32 bits ({workload}).",
                    low - full["loss"] < max(CLOSE * full["loss"], 2 * full["error"]),
                    f"{low:.4f} against {full['loss']:.4f} ± {full['error']:.4f}.",
                )
            )
    return Finding(
        numbers=beside(published("8-bit-optimizers", EXHIBIT.name), ours),
        statements=statements,
        why="Memory saved is computed from shapes, in GiB: RoBERTa's own, GPT-2 Medium's and XL's "
        "for language models of that size; the embedding's states stay in 32 bits where the paper "
        "has a stable embedding. (For RoBERTa-base the paper's 1.1 GB are more than all quantized "
        "states can save.) Losses of small models, ± the standard error over seeds, stand for the "
        "paper's metrics, whose tasks are out of reach here.",
        tables={"saved": frames["saved"]},
    )


EXHIBIT = Exhibit(
    name="table-1",
    covers=("Table 1",),
    title="Metric, time and memory saved of 8-bit optimizers and Adafactor",
    needs=Needs.REPORTS,
    build=build,
    find=find,
    command=committed.PARITY,
)
