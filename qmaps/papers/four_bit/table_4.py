"""Table 4: memory and time."""

from __future__ import annotations

import pandas as pd

from qmaps.papers import committed
from qmaps.papers.context import Context
from qmaps.papers.exhibit import Exhibit, Finding, Frames, Needs
from qmaps.papers.memory import FACTORED, GIB, architectures, quantizers
from qmaps.papers.published import published
from qmaps.papers.verdict import beside

CASE = "AdamW 4-bit of the paper, four matrices"
SAVERS = {
    "8-bit AdamW": quantizers("paper-8bit"),
    "4-bit AdamW": quantizers("paper-4bit"),
    "4-bit Factor": {**quantizers("paper-4bit"), "exp_avg_sq": FACTORED},
}


def build(context: Context) -> Frames:
    """Bytes saved, from shapes; steps, from the benchmark."""
    models = architectures()
    rows = []
    for model in ("LLaMA-7B", "RoBERTa-large", "GPT-2 Medium"):
        full = models[model].states(quantizers("32bit"))
        for name, specs in SAVERS.items():
            saved = (full - models[model].states(specs)) / GIB
            rows.append({"what": f"{model}: {name}", "saved_gib": saved})
    return {"saved": pd.DataFrame(rows), "steps": committed.steps(context)}


def find(frames: Frames) -> Finding:
    """Saved memory beside the paper's."""
    ours: dict[tuple[str, str], float] = {
        (str(row.what), "memory saved"): float(str(row.saved_gib))
        for row in frames["saved"].itertuples()
    }
    steps = frames["steps"]
    for row in steps[steps["case"] == CASE].itertuples():
        name = "4-bit AdamW" if row.contender == "qmaps" else str(row.contender)
        ours[f"{name}, CPU", "step (ns per element)"] = float(str(row.nanoseconds))
    return Finding(
        numbers=beside(published("4-bit-optimizers", EXHIBIT.name), ours),
        why="Memory saved is computed from the shapes of the models' parameters, scales included; "
        "what the states take is checked against live tensors by table 5. The paper's times are of "
        "whole trainings on GPUs; ours are of the optimizer's step alone, on a CPU "
        f"({committed.BENCH}).",
        tables={"saved": frames["saved"]},
    )


EXHIBIT = Exhibit(
    name="table-4",
    covers=("Table 4",),
    title="Memory saved, and time",
    needs=Needs.REPORTS,
    build=build,
    find=find,
    command=committed.BENCH,
)
