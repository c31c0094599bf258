"""Table 4: memory and time."""

from __future__ import annotations

import pandas as pd

from qmaps.lab.report.claim import published
from reproduction import bottlenecks, committed
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.memory import FACTORED, GIB, architectures, quantizers
from reproduction.proxy_metrics import in_place

MODELS = ("LLaMA-7B", "RoBERTa-large", "GPT-2 Medium")
CASES = {
    "4-bit Factor": "AdamW 4-bit, factored second moment, four matrices",
    "8-bit AdamW": "AdamW 8-bit DE, four matrices",
    "4-bit AdamW, fused": "AdamW 4-bit of the paper, four matrices",
}
SAVERS = {
    "8-bit AdamW": quantizers("paper-8bit"),
    "4-bit AdamW": quantizers("paper-4bit"),
    "4-bit AdamW, fused": quantizers("paper-4bit"),
    "4-bit Factor": {**quantizers("paper-4bit"), "exp_avg_sq": FACTORED},
}


def build(context: Context) -> Frames:
    """Bytes saved, from shapes; steps, from the benchmark."""
    models = architectures()
    rows = []
    for model in MODELS:
        full = models[model].states(quantizers("32bit"))
        for name, specs in SAVERS.items():
            saved = (full - models[model].states(specs)) / GIB
            rows.append({"what": f"{model}: {name}", "saved_gib": saved})
    return {
        "saved": pd.DataFrame(rows),
        "steps": committed.relative_steps(context),
        "cores": bottlenecks.cores(context),
    }


def find(frames: Frames) -> Finding:
    """Saved memory beside the paper's, steps in place of its times."""
    paper = published("4-bit-optimizers", EXHIBIT.name)
    printed = set(paper["what"])
    ours: dict[tuple[str, str], float] = {
        (str(row.what), "memory saved"): float(str(row.saved_gib))
        for row in frames["saved"].itertuples()
        if row.what in printed
    }
    steps, proxies = frames["steps"], []
    for model in MODELS:
        times = paper[paper["quantity"] == f"time, {model}"]
        cases = {name: CASES[name] for name in times["what"] if name in CASES}
        proxies += committed.proxy_steps(steps, f"time, {model}", cases, "32-bit AdamW")
    return Finding(
        numbers=in_place(paper, proxies, ours),
        differences=bottlenecks.slower(
            steps, frames["cores"], dict.fromkeys(CASES.values(), "^time, ")
        ),
        why="Memory saved is computed from the shapes of the models' parameters, scales included; "
        "what the states take is checked against live tensors by table 5. The paper's times are of "
        "whole trainings on GPUs; in their place stands the optimizer's step alone, on a CPU, "
        "beside torch's fused step timed in turns with it on two machines, ± half of what the "
        f"middle half of the rounds spans (`{committed.BENCH}`); 4-bit Factor was timed on one. "
        "LLaMA gains from less communication, which a step does not show. All steps of qmaps are "
        "fused, so that there is none to set beside those that are not. Memory in all contains "
        "activations and fragments of runs that cannot be made here.",
        tables={"saved": frames["saved"]},
    )


EXHIBIT = Exhibit(
    name="table-4",
    covers=("Table 4",),
    title="Memory saved, and time",
    needs=Needs.REPORTS,
    computed=("memory saved",),
    build=build,
    find=find,
    command=f"{committed.BENCH}` and of `{bottlenecks.COMMAND}",
)
