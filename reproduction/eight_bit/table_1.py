"""Table 1: metric, time, and memory saved."""

from __future__ import annotations

import math

import pandas as pd

from qmaps.lab.report.claim import Claim
from qmaps.lab.report.published import published
from reproduction import at_best, committed
from reproduction.at_best import Beside
from reproduction.context import Context
from reproduction.differences import Difference
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.lpmm._resnet import ResNet
from reproduction.memory import FACTORED, GIB, architectures, quantizers, state_bytes
from reproduction.numbers import percent
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
PAPER = "B2048/DE@8s + B2048/DE@8u"
"""Quantizers of the paper's Adam."""
STUDY = "eight-bit-table-1"
TEXT = "docstring-lm"
STABLE = f"{TEXT}, stable embedding"
"""As the paper has it in all tasks of language but GLUE."""
TASKS = {
    "GLUE": (TEXT, "AdamW", PAPER),
    "ImageNet": (committed.VISION, "Momentum", "B2048/DE@8s"),
    "MT": (STABLE, "Adam", PAPER),
    "MoCo v2": (committed.VISION, "Momentum", "B2048/DE@8s"),
    "LM, Transformer-1.5B": (STABLE, "Adam", PAPER),
    "LM, GPT3-Medium": (STABLE, "Adam", PAPER),
    "Masked LM, RoBERTa-base": (STABLE, "Adam", PAPER),
}
"""The judge that stands for each, its optimizer, and the quantizers of 8 bits."""
CASES = {
    "8-bit AdamW": "AdamW 8-bit DE, four matrices",
    "8-bit Adam": "AdamW 8-bit DE, four matrices",
    "8-bit Momentum": "SGD with momentum 8-bit, four matrices",
}
OURS = "B256/DE@8s + B256/DE-0@8u"
"""The pair of 8-bit AdamW in the runs."""


def build(context: Context) -> Frames:
    """Bytes saved, from shapes; losses, from runs at the best rates; steps, from the benchmark."""
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
        "runs": at_best.runs(context, STUDY),
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
    tuned = committed.by_key(frames["tuned"])
    statements = []
    for workload in (committed.VISION, committed.LANGUAGE):
        full, low = (tuned[workload, "AdamW", width] for width in ("32bit", "8bit"))
        statements.append(
            Claim(
                f"8-bit AdamW matches 32 bits, each at its best rate ({workload}).",
                low["loss"] - full["loss"] < max(committed.CLOSE * full["loss"], 2 * full["error"]),
                f"{low['loss']:.4f} against {full['loss']:.4f} ± {full['error']:.4f}.",
            )
        )
    stand_ins: list[StandIn] = []
    compared: dict[tuple[str, str], Beside] = {}
    for task, (judge, optimizer, _) in TASKS.items():
        rows = _rows(frames["runs"], task)
        full_name, low_name = f"32-bit {optimizer}", f"8-bit {optimizer}"
        cases = {low_name: CASES[low_name]}
        stand_ins.append(at_best.stand_in(task, judge, rows))
        stand_ins += committed.stand_in_steps(frames["steps"], f"{task}, time", cases, full_name)
        if (judge, low_name) not in compared:
            statements.append(rows[low_name].alike(low_name, judge))
        compared |= {(judge, name): row for name, row in rows.items()}
    paper = published("8-bit-optimizers", EXHIBIT.name)
    return Finding(
        numbers=in_place(paper, stand_ins, ours),
        statements=statements + committed.alike(frames["judges"], OURS, "8-bit AdamW"),
        differences=[
            *committed.slower(frames["steps"], CASES.values(), "time: "),
            _zero(frames["runs"], frames["judges"]),
        ],
        why="The paper's tasks (GLUE, ImageNet, WMT for MT, and language models of up to 1.5e9 "
        "parameters) are out of reach here. In place of its metrics stand validation losses (lower "
        "is better) of small models: of images for ImageNet and MoCo, for the others of text, with "
        "the stable embedding where the paper has it; the model goes on from trained weights and "
        "tells differences best (reports/judges.md). Each optimizer runs at the rate that is best "
        "for it in 32 bits; ± is the standard error of the "
        "difference to the first row of its task, seed by seed. "
        + _power(frames["runs"], paper)
        + " The paper's times are of whole trainings on GPUs; in "
        "their place stands the optimizer's step alone, on a CPU, relative to torch's fused step, "
        "with which it was timed in turns on two machines, ± half of the interquartile range over "
        f"rounds (`{committed.BENCH}`). Rows called reference are numbers that the paper takes "
        "from other papers. Adafactor has a first moment and Adam's betas, as the paper's; it was "
        "not timed beside these. Memory saved is "
        "computed from shapes, in GiB: "
        "RoBERTa's and ResNet's own, GPT-2 Medium's and XL's for language models of that size; the "
        "embedding's states stay in 32 bits where the paper has a stable embedding. For "
        "RoBERTa-base the paper's 1.1 GB are more than all quantized states can save. The paper "
        "does not say which Transformer it translates with.",
        tables={
            "saved": frames["saved"],
            "losses": at_best.table({", ".join(names): row for names, row in compared.items()}),
        },
    )


def _rows(runs: pd.DataFrame, task: str) -> dict[str, Beside]:
    """The rows of a task beside 32 bits of its optimizer."""
    judge, optimizer, low = TASKS[task]
    group = f"{judge}, {optimizer}"
    full = at_best.by_seed(runs, group)
    losses = {f"32-bit {optimizer}": full, f"8-bit {optimizer}": at_best.by_seed(runs, group, low)}
    if optimizer != "Momentum":
        losses["Adafactor"] = at_best.by_seed(runs, f"{judge}, Adafactor")
    return {name: at_best.beside(given, full) for name, given in losses.items()}


def _zero(runs: pd.DataFrame, judges: pd.DataFrame) -> Difference:
    """What the zero in the map of second moments costs, with and without the stable embedding."""
    apart = _rows(runs, "GLUE")["8-bit AdamW"].apart
    found = judges[(judges["judge"] == TEXT) & (judges["quantizer"] == OURS)]
    ours = float(found["difference"].iloc[0])
    stable = _rows(runs, "MT")["8-bit Adam"].apart
    return Difference(
        f"Without the stable embedding the paper's pair ends {apart.mean:+.4f} from 32 bits on "
        f"{TEXT}, with it {stable.mean:+.4f}, and our preset, whose map of second moments holds no "
        f"zero, {ours:+.4f} without. The paper loses nothing with either; no control of ours shows "
        "what keeps it from that.",
        elsewhere=False,
        of="^(GLUE|MT|LM, [^,:]*|Masked LM, [^,:]*): |^8-bit AdamW ends .*docstring-lm",
    )


def _power(runs: pd.DataFrame, paper: pd.DataFrame) -> str:
    """What each judge can tell, and how far the paper's rows are apart."""
    said = []
    for task in ("GLUE", "ImageNet", "LM, GPT3-Medium"):
        judge, optimizer, _ = TASKS[task]
        row = _rows(runs, task)[f"8-bit {optimizer}"]
        values = paper[paper["quantity"] == task]["paper"]
        effect = percent(1 - float(values.min()) / float(values.max()))
        said.append(
            f"{percent(row.apart.detectable / row.base)} of the loss on {judge} (standard "
            f"deviation {row.apart.std:.4f}, {row.seeds} seeds; the paper's rows of {task} are "
            f"{effect} apart)"
        )
    return (
        "Of what 8 bits cost, a t-test at 5 % sees with a probability of 80 %: "
        + ", ".join(said)
        + "."
    )


EXHIBIT = Exhibit(
    name="table-1",
    covers=("Table 1",),
    title="Metric, time and memory saved of 8-bit optimizers and Adafactor",
    needs=Needs.REPORTS,
    computed=("memory saved",),
    build=build,
    find=find,
    command=f"{at_best.command(STUDY)}`, of `{committed.JUDGES}`, of `{committed.TUNED}` and of "
    f"`{committed.BENCH}",
)
