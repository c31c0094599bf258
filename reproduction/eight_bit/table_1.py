"""Table 1: metric, time, and memory saved."""

from __future__ import annotations

import math

import pandas as pd

from qmaps.lab.report.claim import Claim
from qmaps.lab.report.published import published
from reproduction import committed
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.lpmm._resnet import ResNet
from reproduction.memory import FACTORED, GIB, architectures, quantizers, state_bytes
from reproduction.stand_ins import StandIn, in_place

MODELS = {
    "RoBERTa-large": ("RoBERTa-large", "AdamW", False),
    "Transformer-1.5B": ("GPT-2 XL", "Adam", True),
    "GPT3-Medium": ("GPT-2 Medium", "Adam", True),
    "RoBERTa-base": ("RoBERTa-base", "Adam", True),
}
"""The model whose shapes stand for the paper's, and whether it has a stable embedding."""
RESNETS = ("ResNet-50: 8-bit Momentum", "ResNet-50, MoCo v2: 8-bit Momentum")
MOMENTUM = "B2048/DE@8s"
ROWS = {
    "32-bit AdamW": ("AdamW", "32bit"),
    "8-bit AdamW": ("AdamW", "8bit"),
    "32-bit Adam": ("Adam", "32bit"),
    "8-bit Adam": ("Adam", "8bit"),
    "32-bit Momentum": ("SGD", "32bit"),
    "8-bit Momentum": ("SGD", "8bit"),
}
OPTIMIZERS = ("Adam", "AdamW", "SGD", "Adafactor")
PAIRS = {name: (f"32-bit {name}", f"8-bit {name}") for name in ("AdamW", "Adam", "Momentum")}
TASKS = {
    "GLUE": ((committed.LANGUAGE, committed.LONGER), "AdamW"),
    "ImageNet": ((committed.VISION,), "Momentum"),
    "MT": ((committed.LANGUAGE,), "Adam"),
    "MoCo v2": ((committed.VISION,), "Momentum"),
    "LM, Transformer-1.5B": ((committed.LANGUAGE,), "Adam"),
    "LM, GPT3-Medium": ((committed.LANGUAGE,), "Adam"),
    "Masked LM, RoBERTa-base": ((committed.LANGUAGE,), "Adam"),
}
"""The workloads that stand for each, and its optimizer."""
CASES = {
    "8-bit AdamW": "AdamW 8-bit DE, four matrices",
    "8-bit Adam": "AdamW 8-bit DE, four matrices",
    "8-bit Momentum": "SGD with momentum 8-bit, four matrices",
}
OURS = "B256/DE@8s + B256/DE-0@8u"
"""The pair of 8-bit AdamW in the runs."""


def build(context: Context) -> Frames:
    """Bytes saved, from shapes; losses, from the table of parity; steps, from the benchmark."""
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
    saved = sum(4 * math.prod(shape) - state_bytes(shape, MOMENTUM) for shape in ResNet().shapes())
    rows += [{"what": name, "saved_gib": saved / GIB} for name in RESNETS]
    return {
        "saved": pd.DataFrame(rows),
        "parity": committed.parity(context),
        "tuned": committed.tuned(context),
        "judges": committed.judges(context),
        "steps": committed.relative_steps(context),
    }


def find(frames: Frames) -> Finding:
    """Memory beside the paper's; losses in place of its metrics, steps in place of its times."""
    ours: dict[tuple[str, str], float] = {
        (str(row.what), "memory saved"): float(str(row.saved_gib))
        for row in frames["saved"].itertuples()
    }
    parity = frames["parity"]
    found, tuned = committed.by_key(parity), committed.by_key(frames["tuned"])
    statements = []
    for workload in parity["workload"].unique():
        for optimizer in ("AdamW", "SGD"):
            best = (workload, optimizer, "8bit") in tuned
            runs = tuned if best else found
            rate = "each at its best rate" if best else "at a rate that was not tuned"
            full = runs[workload, optimizer, "32bit"]
            low = runs[workload, optimizer, "8bit"]["loss"]
            statements.append(
                Claim(
                    f"8-bit {optimizer} matches 32 bits, {rate} ({workload}).",
                    low - full["loss"] < max(committed.CLOSE * full["loss"], 2 * full["error"]),
                    f"{low:.4f} against {full['loss']:.4f} ± {full['error']:.4f}.",
                )
            )
    stand_ins = []
    for task, (workloads, optimizer) in TASKS.items():
        full_name, low_name = PAIRS[optimizer]
        keys = {name: ROWS[name] for name in (full_name, low_name)}
        cases = {low_name: CASES[low_name]}
        stand_ins += [
            StandIn(task, f"validation loss, {each}", committed.losses(parity, each, keys))
            for each in workloads
        ]
        stand_ins += committed.stand_in_steps(frames["steps"], f"{task}, time", cases, full_name)
    return Finding(
        numbers=in_place(published("8-bit-optimizers", EXHIBIT.name), stand_ins, ours),
        statements=statements + committed.alike(frames["judges"], OURS, "8-bit AdamW"),
        differences=committed.slower(frames["steps"], CASES.values(), "time: "),
        why="The paper's tasks (GLUE, ImageNet, WMT for MT, and language models of up to 1.5e9 "
        "parameters) are out of reach here. In place of its metrics stand validation losses (lower "
        "is better) of small models: of images for ImageNet and MoCo, of text for the others, "
        "± the standard error over seeds. The losses of the table are at learning rates that were "
        "not tuned, after 100 to 250 steps. The paper's times are of whole trainings on GPUs; in "
        "their place stands the optimizer's step alone, on a CPU, relative to torch's fused step, "
        "with which it was timed in turns on two machines, ± half of the interquartile range over "
        f"rounds (`{committed.BENCH}`). Rows called reference are numbers that the paper takes "
        "from other papers. The paper's Adafactor has a first moment; ours was run without one "
        "and not timed beside these, so that only its memory is compared. Memory saved is "
        "computed from shapes, in GiB: "
        "RoBERTa's and ResNet's own, GPT-2 Medium's and XL's for language models of that size; the "
        "embedding's states stay in 32 bits where the paper has a stable embedding. For "
        "RoBERTa-base the paper's 1.1 GB are more than all quantized states can save. The paper "
        "does not say which Transformer it translates with.",
        tables={"saved": frames["saved"], "losses": parity[parity["optimizer"].isin(OPTIMIZERS)]},
    )


EXHIBIT = Exhibit(
    name="table-1",
    covers=("Table 1",),
    title="Metric, time and memory saved of 8-bit optimizers and Adafactor",
    needs=Needs.REPORTS,
    computed=("memory saved",),
    build=build,
    find=find,
    command=f"{committed.PARITY}`, of `{committed.TUNED}` and of `{committed.BENCH}",
)
