"""Table 4: memory and time."""

from __future__ import annotations

import pandas as pd

from reproduction.claim import published
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.memory import FACTORED, GIB, architectures, quantizers
from reproduction.verdict import beside

MODELS = ("LLaMA-7B", "RoBERTa-large", "GPT-2 Medium")
SAVERS = {
    "8-bit AdamW": quantizers("paper-8bit"),
    "4-bit AdamW": quantizers("paper-4bit"),
    "4-bit AdamW, fused": quantizers("paper-4bit"),
    "4-bit Factor": {**quantizers("paper-4bit"), "exp_avg_sq": FACTORED},
}


def build(_: Context) -> Frames:
    """Bytes saved, from shapes."""
    models = architectures()
    rows = []
    for model in MODELS:
        full = models[model].states(quantizers("32bit"))
        for name, specs in SAVERS.items():
            saved = (full - models[model].states(specs)) / GIB
            rows.append({"what": f"{model}: {name}", "saved_gib": saved})
    return {"saved": pd.DataFrame(rows)}


def find(frames: Frames) -> Finding:
    """Saved memory beside the paper's."""
    paper = published("4-bit-optimizers", EXHIBIT.name)
    printed = set(paper["what"])
    ours: dict[tuple[str, str], float] = {
        (str(row.what), "memory saved"): float(str(row.saved_gib))
        for row in frames["saved"].itertuples()
        if row.what in printed
    }
    return Finding(
        numbers=beside(paper, ours),
        why="Memory saved is computed from the shapes of the models' parameters, scales included; "
        "what the states take is checked against live tensors by table 5. The paper's times are of "
        "whole trainings on GPUs, which nothing measured on a CPU can be set beside. Memory in all "
        "contains "
        "activations and fragments of runs that cannot be made here.",
        tables={"saved": frames["saved"]},
    )


EXHIBIT = Exhibit(
    name="table-4",
    covers=("Table 4",),
    title="Memory saved, and time",
    needs=Needs.REPORTS,
    source="shapes of published models",
    timed="^time, ",
    computed=("memory saved",),
    build=build,
    find=find,
)
