"""Table 2: optimizers on different tasks."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from reproduction import committed
from reproduction.claim import Claim, published
from reproduction.context import Context
from reproduction.differences import Difference
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.proxy_metrics import ProxyMetric, in_place, opposed

ROWS = {
    "32-bit AdamW": ("AdamW", "32bit"),
    "Adafactor, beta1 = 0": ("Adafactor", "32bit"),
    "SM3": ("SM3", "32bit"),
    "8-bit AdamW": ("AdamW", "8bit"),
    "4-bit AdamW": ("AdamW", "paper-4bit"),
    "4-bit Factor": ("AdamWFactor", "paper-4bit"),
}
TUNED = {"CLS": committed.VISION, "MT": committed.LANGUAGE}
"""The workload in place of a task trained from scratch, and every row's best rate."""
PRETRAINED_TASKS = {"NLU": "minilm", "QA": "minilm", "NLG": "docstring-lm"}
"""The workload in place of a task that starts from trained weights, at the best rate of 32
bits."""
PAIRS = {
    "32-bit AdamW": committed.FULL,
    "8-bit AdamW": "B256/DE@8s + B256/DE-0@8u",
    "4-bit AdamW": "B128/DE@4s + rank1/linear@4u",
}


def build(context: Context) -> Frames:
    """Runs at their own best rates, and those of every task."""
    return {"tuned": committed.tuned(context), "judges": committed.by_task(context)}


def find(frames: Frames) -> Finding:
    """Losses in place of the paper's metrics."""
    tuned, by_task = frames["tuned"], frames["judges"]
    statements = [
        claim
        for name in ("8-bit AdamW", "4-bit AdamW")
        for claim in committed.alike(by_task, PAIRS[name], name)
    ]
    proxies = []
    for task, workload in TUNED.items():
        ours = committed.losses(tuned, workload, ROWS)
        proxies.append(ProxyMetric(task, f"validation loss, {workload}", ours))
        base, error = ours["32-bit AdamW"]
        statements += [
            Claim(
                f"{name} ends behind 32-bit AdamW, each at its best rate ({workload}).",
                loss > base if abs(loss - base) > error + spread else (),
                f"{loss:.4f} ± {spread:.4f} against {base:.4f} ± {error:.4f}.",
            )
            for name, (loss, spread) in ours.items()
            if name in ("Adafactor, beta1 = 0", "SM3")
        ]
    proxies += [
        ProxyMetric(
            task, f"validation loss, {workload}", committed.task_losses(by_task, workload, PAIRS)
        )
        for task, workload in PRETRAINED_TASKS.items()
    ]
    paper = published("4-bit-optimizers", EXHIBIT.name)
    return Finding(
        numbers=in_place(paper, proxies),
        statements=statements,
        differences=[*(_of_task(paper, proxy) for proxy in proxies), _ahead(paper)],
        why="The paper's tasks (GLUE, ImageNet, E2E, SQuAD, WMT) need pretrained models and data "
        "that cannot be had here; validation losses (lower is better) of small models stand in "
        "their place. For CLS and MT, which train from scratch: images of digits and text, each "
        f"row at its own best rate (`{committed.TUNED}`), ± the standard error over seeds. For "
        "NLU, QA and NLG, which fine-tune: a pretrained encoder, and a small model that goes on "
        f"from trained weights (`{committed.TASK_RUNS}`), at the rate that is best for 32 bits, ± "
        "the standard error of the difference to 32 bits, seed by seed; other optimizers were not "
        "run there. Adafactor was run here without a first moment only.",
        tables={"tuned": tuned, "judges": by_task},
    )


def _of_task(paper: pd.DataFrame, proxy: ProxyMetric) -> Difference:
    """Rows with another order in one task; the paper's other tasks are no control of ours."""
    crossed = opposed(paper, proxy)
    elsewhere = [
        not set(crossed) & set(opposed(paper, replace(proxy, quantity=str(task))))
        for task in paper["quantity"].unique()
        if task != proxy.quantity
    ]
    pairs = "; ".join(f"{a} and {b}" for a, b in crossed)
    sides = f"rows that change sides: {pairs}. They"
    if not crossed:
        sides = "no row changes sides, but some are equal in one metric only. Rows"
    return Difference(
        f"{proxy.quantity}: {sides} lie as here in {sum(elsewhere)} of the paper's "
        f"{len(elsewhere)} other tasks, whose orders differ too. No control of ours changes the "
        "model or the data alone.",
        False,
        f"^{proxy.quantity}: ",
    )


def _ahead(paper: pd.DataFrame) -> Difference:
    """Tasks of the paper where Adafactor is ahead as well."""
    tasks = paper.pivot(index="quantity", columns="what", values="paper")
    ahead = tasks.index[tasks["Adafactor, beta1 = 0"] > tasks["32-bit AdamW"]]
    return Difference(
        f"Adafactor without a first moment is ahead in the paper too on {', '.join(ahead)}, and "
        f"behind on its {len(tasks) - len(ahead)} other tasks. No control of ours says why.",
        False,
        "^Adafactor.*behind",
    )


EXHIBIT = Exhibit(
    name="table-2",
    covers=("Table 2",),
    title="Optimizers on language and vision tasks",
    needs=Needs.REPORTS,
    build=build,
    find=find,
    command=committed.TUNED,
)
