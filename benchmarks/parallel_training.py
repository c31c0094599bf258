"""Training with 8-bit gradients or activations in the 2015 paper's four data types, beside 32 bits.

``python -m benchmarks.parallel_training`` trains on handwritten digits, goes on where it was
stopped, and writes reports/parallel-training.{csv,md}: test errors over seeds, with the paper's
F-test of no difference and a t-test of each type against 32 bits; errors over training stand in
reports/parallel-training-curves.csv.

As in the paper, one device stands for a large cluster: every number that a cluster would send is
quantized, and no 32-bit part is left. What several processes do with the same messages is tested in
tests/distributed/comm.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from scipy import stats
from torch import Tensor, nn

import qmaps
from benchmarks.command import command_line, count, one_line_errors
from benchmarks.markdown import markdown as table_lines
from qmaps.errors import OutputError
from qmaps.lab.workloads.base import seeded
from qmaps.lab.workloads.digits import VALIDATION, Digits, images
from qmaps.storage.files import output_folder, replacing, write_json
from reproduction.report_file import write_report

FULL = "32-bit"
TYPES = {
    "dynamic tree": "tensor/tree@8s",
    "linear": "tensor/linear0@8s",
    "mantissa": "tensor/mantissa@8s",
    "static tree": "tensor/static-tree@8s",
}
PARALLEL = ("data", "model")
HEAD = ("net", "parallel", "type", "seeds", "error, %", "spread", "minus 32-bit", "t-test p")
BATCH = 32
EVERY = 50
"""Steps between two looks at the errors."""
LEVEL = 0.05
"""Below this a difference would be called significant."""


class Sent(torch.autograd.Function):
    """Activations as others receive them, forward, and errors, backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, q: qmaps.Quantizer) -> Tensor:
        """Quantize and decode `x`."""
        ctx.q = q
        return q.quantize(x).dequantize()

    @staticmethod
    def backward(ctx: Any, *errors: Tensor) -> tuple[Tensor, None]:
        """Quantize and decode the errors."""
        return ctx.q.quantize(errors[0]).dequantize(), None


class Send(nn.Module):
    """`Sent` as a layer, for training only: a trained net is tested on one device."""

    def __init__(self, q: qmaps.Quantizer) -> None:
        super().__init__()
        self.q = q

    def forward(self, x: Tensor) -> Tensor:
        """Round `x` as the other processes receive it."""
        return Sent.apply(x, self.q) if self.training else x


def paper_net() -> nn.Sequential:
    """The paper's net for MNIST, for 64 pixels in place of 784."""
    return nn.Sequential(
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 1024), nn.ReLU(), nn.Dropout(0.3),
        nn.Linear(1024, 1024), nn.ReLU(), nn.Dropout(0.3), nn.Linear(1024, 10),
    )  # fmt: skip


@dataclass(frozen=True)
class Net:
    """A net and how it is trained.

    Attributes:
        build: makes it, weights drawn from torch's generator.
        optimizer: of its parameters.
        steps: how long.
    """

    build: Callable[[], nn.Module]
    optimizer: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]
    steps: int


NETS = {
    "1024-1024": Net(paper_net, lambda p: torch.optim.RMSprop(p, lr=0.003), 1500),
    "convolutional": Net(lambda: Digits().build(), lambda p: torch.optim.Adam(p, lr=1e-3), 1500),
}


def split(model: nn.Module, q: qmaps.Quantizer) -> nn.Module:
    """`model` with the outputs of its linear layers sent."""
    layers: list[nn.Module] = []
    for layer in model.children():
        layers.append(layer)
        if isinstance(layer, nn.Linear):
            layers.append(Send(q))
    return nn.Sequential(*layers)


def train(net: Net, parallel: str, kind: str, seed: int, steps: int) -> list[dict[str, float]]:
    """Errors on training and test images over training: `step`, `train`, `test` (fractions)."""
    work = Digits(batch_size=BATCH)
    q = None if kind == FULL else qmaps.quantizer(TYPES[kind])
    curve = []
    with seeded(seed):  # dropout, too
        model = net.build()
        if q is not None and parallel == "model":
            model = split(model, q)
        optimizer = net.optimizer(model.parameters())
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            work.loss(model, work.batch(step, seed)).backward()
            if q is not None and parallel == "data":
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    q.dequantize(q.quantize(parameter.grad), out=parameter.grad)
            optimizer.step()
            if step % EVERY == 0 or step == steps:
                curve.append({"step": step, **errors(model)})
    return curve


@torch.no_grad()
def errors(model: nn.Module) -> dict[str, float]:
    """Fractions of training and of test images that a model in training gets wrong."""
    pixels, labels = images()
    model.eval()
    wrong = (model(pixels).argmax(dim=1) != labels).double()
    model.train()
    return {"train": float(wrong[VALIDATION:].mean()), "test": float(wrong[:VALIDATION].mean())}


def run(
    name: str, parallel: str, kind: str, seed: int, steps: int | None, out: Path
) -> list[dict[str, float]]:
    """One training run's curve, or that of an earlier one."""
    net = NETS[name]
    steps = steps or net.steps
    key = f"{name}-{parallel}-{kind}-seed{seed}".replace(" ", "-")
    file = output_folder(out, "runs") / f"{key}.json"
    if file.exists():
        points: list[dict[str, float]] = json.loads(file.read_text(encoding="utf-8"))
        if points[-1]["step"] != steps:
            raise OutputError(
                f"{str(file)!r} holds a run with steps={points[-1]['step']}; {steps} was asked for"
            )
        return points
    curve = train(net, parallel, kind, seed, steps)
    write_json(file, curve)
    return curve


def summary(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Errors over seeds, and the tests.

    Args:
        frame: `net`, `parallel`, `type`, `seed`, `error` (fraction).

    Returns:
        One row for each type: `net`, `parallel`, `type`, `seeds`, `mean`, `spread`, `difference`
        and `p` (both against 32-bit, paired by seed; NaN for itself or without any difference).
        And one for each net and parallelism: `F` and `p` of no difference between all five.
    """
    rows, tests = [], []
    for (net, parallel), part in frame.groupby(["net", "parallel"], sort=False):
        wide = part.pivot(index="seed", columns="type", values="error")
        groups = [wide[kind] for kind in part["type"].unique()]
        f_test = stats.f_oneway(*groups)
        tests.append({"net": net, "parallel": parallel, "F": f_test.statistic, "p": f_test.pvalue})
        for kind in part["type"].unique():
            apart = wide[kind] - wide[FULL]
            p = stats.ttest_rel(wide[kind], wide[FULL]).pvalue if apart.std() > 0 else float("nan")
            rows.append(
                {
                    "net": net,
                    "parallel": parallel,
                    "type": kind,
                    "seeds": len(wide),
                    "mean": wide[kind].mean(),
                    "spread": wide[kind].std(),
                    "difference": apart.mean(),
                    "p": p,
                }
            )
    return pd.DataFrame(rows), pd.DataFrame(tests)


def curves(points: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Over seeds: `net`, `parallel`, `type`, `step`, means `train` and `test`, `*_std`."""
    keys = ["net", "parallel", "type", "step"]
    grouped = pd.DataFrame(points).groupby(keys, sort=False)[["train", "test"]]
    means = grouped.mean().join(grouped.std().add_suffix("_std"))
    return means.reset_index().sort_values(["net", "parallel"], kind="stable")


def markdown(frame: pd.DataFrame, command: str) -> str:
    """The results as a page."""
    table, tests = summary(frame)
    cells = [
        [
            row["net"],
            row["parallel"],
            row["type"],
            str(row["seeds"]),
            f"{100 * row['mean']:.2f}",
            f"{100 * row['spread']:.2f}",
            f"{100 * row['difference']:+.2f}",
            "-" if row["p"] != row["p"] else f"{row['p']:.2f}",
        ]
        for row in table.to_dict("records")
    ]
    verdicts = [
        f"- {test['net']}, {test['parallel']} parallel: F = {test['F']:.2f}, p = {test['p']:.2f}: "
        + ("a difference" if test["p"] < LEVEL else "no significant difference")
        for test in tests.to_dict("records")
    ]
    steps = ", ".join(f"{name}: {count} steps" for name, count in _steps(frame).items())
    lines = [
        "# Training with 8-bit messages in four data types",
        "",
        f"`{command}`",
        "",
        f"torch {torch.__version__}. Handwritten digits, 1437 to train on and 360 to test on, so "
        f"that one image is 0.28 %; batches of {BATCH}; the same weights, batches and dropout for "
        f"all types of a seed. {steps}. As in the paper, one device stands for a large cluster: "
        "what a cluster would send is quantized, all of it. Data parallel: all gradients; model "
        "parallel: activations of linear layers and their errors. Mantissa and static tree are "
        "normalized as the other two, in place of a fitted exponent. The paper finds no "
        "significant difference on MNIST for any of the four, data or model parallel.",
        "",
        "F-test of no difference between 32 bits and the four types:",
        "",
        *verdicts,
        "",
        *table_lines(HEAD, cells),
    ]
    return "\n".join(lines) + "\n"


def _steps(frame: pd.DataFrame) -> dict[str, int]:
    return {str(k): int(v) for k, v in frame.groupby("net", sort=False)["steps"].first().items()}


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.parallel_training", description=__doc__
    )
    parser.add_argument("--net", action="append", choices=list(NETS), help="default: all")
    parser.add_argument("--seeds", type=count, default=8, help="(8)")
    parser.add_argument("--steps", type=count, help="of each run (default: the net's)")
    parser.add_argument("--runs", type=Path, default=Path("runs/parallel-training"))
    parser.add_argument("--out", type=Path, default=Path("reports"), help="folder of the results")
    options = parser.parse_args(argv)
    if options.seeds < 2:
        parser.error(f"--seeds={options.seeds} must be at least 2, for the tests")
    output_folder(options.out)
    rows: list[dict[str, Any]] = []
    points: list[dict[str, Any]] = []
    names = options.net or list(NETS)
    # Seed by seed, so that what there is of an interrupted run can be compared.
    plan = list(product(range(options.seeds), names, PARALLEL, [FULL, *TYPES]))
    for number, (seed, name, parallel, kind) in enumerate(plan, 1):
        # In 32 bits there is nothing to tell data from model parallel.
        where = "data" if kind == FULL else parallel
        curve = run(name, where, kind, seed, options.steps, options.runs)
        about = {"net": name, "parallel": parallel, "type": kind, "seed": seed}
        points += [{**about, **point} for point in curve]
        last = curve[-1]
        rows.append({**about, "steps": last["step"], "error": last["test"]})
        about_run = f"{name} {parallel} {kind} {seed}"
        print(f"{number}/{len(plan)} {about_run}: {last['test']:.4f}", flush=True)
    frame = pd.DataFrame(rows).sort_values(["net", "parallel"], kind="stable")
    command = command_line("benchmarks.parallel_training", argv)
    with replacing(options.out / "parallel-training.csv") as temporary:
        frame.to_csv(temporary, index=False)
    with replacing(options.out / "parallel-training-curves.csv") as temporary:
        curves(points).to_csv(temporary, index=False, float_format="%.5f")
    write_report(options.out / "parallel-training.md", markdown(frame, command))
    return 0


if __name__ == "__main__":
    sys.exit(main())
