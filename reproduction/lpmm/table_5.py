"""Table 5: memory saved, and throughput."""

from __future__ import annotations

import pandas as pd
from torch import nn

from qmaps import lpmm
from qmaps.lab import workloads
from qmaps.lpmm.footprint import ModelMemory
from qmaps.lpmm.optimizer import LowPrecisionOptimizer
from reproduction.claim import Claim, published
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.lpmm import _memory as kept
from reproduction.lpmm._resnet import ResNet
from reproduction.memory import GIB, architectures
from reproduction.report_file import closed
from reproduction.verdict import beside

COMMAND = closed("python -m benchmarks.lpmm_step")
LOW = "12/8/8 bits"
SHARE, LESS = "model memory saved", "model memory less"
BITS, TOTAL = "model memory", "model memory in all"
LAYER = "ResNet-50, LPMM-SGDM, and the largest parameter at work in 32 bits"
CHECKED = ("digits", "stdlib-lm-tiny")


def build(context: Context) -> Frames:
    """Bytes, from shapes and of live tensors; ratios of times, from the benchmark."""
    ratios = context.json("lpmm/step.json", COMMAND)["ratios"]
    steps = pd.DataFrame(
        {"net": net, "kept_as": name, "ratio": layer["ratio"], "parameters": _parameters(net)}
        for net, rows in ratios.items()
        for name, layer in rows.items()
    )
    checked = pd.DataFrame(row for name in CHECKED for row in _checked(name))
    return {"memory": pd.DataFrame(_memory()), "checked": checked, "steps": steps}


def _memory() -> list[dict[str, object]]:
    """`what`, `quantity` and `ours` of memory."""
    models = architectures()
    roberta = [shape for _, shape in models["RoBERTa-large"].shapes()]
    resnet = list(ResNet().shapes())
    sgd, sgd_32 = kept.SGD.memory(resnet), kept.SGD_32.memory(resnet)
    adam, adam_32 = kept.ADAM.memory(roberta), kept.ADAM_32.memory(roberta)
    adam_8888 = kept.ADAM_8888.memory(roberta)
    sgd_8 = kept.SGD_8.memory(resnet)
    gpt = kept.SGD_32.memory(shape for _, shape in models["GPT-2 XL"].shapes())
    # Weights, gradient and momentum of one parameter.
    at_work = kept.at_work(resnet, values=3)
    rows = [
        ("ResNet-50, LPMM-SGDM", SHARE, _saved(sgd.nbytes, sgd_32)),
        ("RoBERTa-large, LPMM-Adam", SHARE, _saved(adam.nbytes, adam_32)),
        ("RoBERTa-large, LPMM-Adam", LESS, (adam_32.nbytes - adam.nbytes) / GIB),
        ("LPMM-SGDM", BITS, sgd.bits_per_parameter),
        ("8-bit SGDM", BITS, sgd_8.bits_per_parameter),
        ("32-bit SGDM", BITS, sgd_32.bits_per_parameter),
        ("GPT-2 XL, 32-bit SGDM", TOTAL, gpt.nbytes / GIB),
        (LAYER, SHARE, _saved(sgd.nbytes + at_work, sgd_32)),
        ("RoBERTa-large, LPMM-Adam, 8 bits throughout", SHARE, _saved(adam_8888.nbytes, adam_32)),
    ]
    return [{"what": what, "quantity": quantity, "ours": ours} for what, quantity, ours in rows]


def _saved(low: int, full: ModelMemory) -> float:
    return 100 * (1 - low / full.nbytes)


def _parameters(name: str) -> int:
    return sum(parameter.numel() for parameter in workloads.get(name).model(0).parameters())


def _checked(name: str) -> list[dict[str, object]]:
    """Model memory after a step, as predicted from shapes and as it is."""
    work = workloads.get(name)
    rows: list[dict[str, object]] = []
    for optimizer, how in (("LPMM-SGDM", kept.SGD), ("LPMM-Adam", kept.ADAM)):
        model = work.model(0)
        predicted = how.memory([tuple(parameter.shape) for parameter in model.parameters()])
        live = _step(model, optimizer, name)
        rows.append(
            {
                "model": name,
                "optimizer": optimizer,
                "predicted_bytes": predicted.nbytes,
                "measured_bytes": live.nbytes,
            }
        )
    return rows


def _step(model: nn.Module, optimizer: str, name: str) -> ModelMemory:
    """Convert a workload's model, take a step, and measure."""
    work = workloads.get(name)
    lpmm.convert(model, kept.PARAMS, kept.GRADS)
    make = {"LPMM-SGDM": lpmm.LPMMSGD, "LPMM-Adam": lpmm.LPMMAdam}[optimizer]
    made: LowPrecisionOptimizer = make(model.named_parameters(), lr=work.lr)
    batch = tuple(part[:1] for part in work.batch(1, 0))
    work.loss(model, (batch[0], batch[1])).backward()  # type: ignore[no-untyped-call]
    made.step()
    return lpmm.measure(model, made)


def find(frames: Frames) -> Finding:
    """Memory beside the paper's, and the paper's statements on speed."""
    memory, steps, checked = frames["memory"], frames["steps"], frames["checked"]
    ours = {(str(row.what), str(row.quantity)): float(str(row.ours)) for row in memory.itertuples()}
    same = checked["predicted_bytes"] == checked["measured_bytes"]
    saved = ours["ResNet-50, LPMM-SGDM", SHARE]
    low = steps[steps["kept_as"] == LOW].sort_values("parameters")
    ratios = dict(zip(low["net"], low["ratio"], strict=True))
    times = ", ".join(f"{net} {ratio:.2f}" for net, ratio in ratios.items())
    numbers = beside(published("low-precision-model-memory", EXHIBIT.name), ours)
    return Finding(
        numbers=numbers,
        statements=[
            Claim(
                "12/8/8 bits reduce model memory by over 70 %.",
                saved > 70,
                f"By {saved:.1f} %, scales included.",
            ),
            Claim(
                "The computed bytes are those of live tensors.",
                bool(same.all()),
                f"In {same.sum()} of {len(same)} cases.",
            ),
            Claim(
                "A step takes longer than in full precision.",
                bool((low["ratio"] > 1).all()),
                f"{LOW}, times full precision: {times}.",
            ),
            Claim(
                "The larger the model, the more so.",
                bool(low["ratio"].is_monotonic_increasing),
                f"In the order of their sizes: {times}.",
            ),
        ],
        why="Our copy of the paper lacks the table; its text tells what is saved, section 1 the "
        "bits, section 3.1 GPT-2's 1.5 billion parameters. Computed from shapes, GB are 2^30 "
        "bytes. LPMM-Adam saves the text's share with parameters in 12 bits; 8 bits would save "
        "more. LPMM-SGDM saves more of ResNet-50 than the text's share, which is less than 28 of "
        "96 bits leave; the row below counts in 32 bits what a layer takes at its step: weights, "
        "gradient and momentum of the largest parameter. Times are of training steps of small "
        f"nets on a CPU (`{COMMAND}`).",
        tables={"checked": checked, "steps": steps},
    )


EXHIBIT = Exhibit(
    name="table-5",
    covers=("Table 5",),
    title="Memory saved, and what a step takes",
    needs=Needs.REPORTS,
    timed="^A step takes|^The larger",
    computed=("model memory", "model memory in all", "model memory less", "model memory saved"),
    build=build,
    find=find,
    command=COMMAND,
)
