"""Time of a training step with the whole model in low precision, beside plain training.

``python -m benchmarks.lpmm_step`` trains the nets of `digits` and `stdlib-lm-tiny` by SGD with
momentum and by Adam, in full precision and as codes, each in its turn in every round, and writes
reports/lpmm/step.{json,md}. A step is forward, backward, update and emptying of gradients. A second
table has the optimizer's step alone, on four large matrices, beside the step of 8-bit AdamW.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from itertools import count as counted
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import machine
from benchmarks.adafactor import processor_time
from benchmarks.command import count, one_line_errors, positive
from benchmarks.data import matrices, new_gradients, parameters
from benchmarks.markdown import markdown as table_lines
from benchmarks.timing import Work, interleaved, ratio
from qmaps import lpmm, optim
from qmaps.lab import workloads
from qmaps.lab.workloads import Workload
from qmaps.lpmm.convert import PARAMS
from qmaps.storage.files import output_folder, write_json
from reproduction.report_file import write_report

PLAIN = "full precision (torch.optim.SGD)"
PLAIN_ADAM = "full precision (torch.optim.Adam)"
OPTIONS: dict[str, Any] = {"lr": 0.01, "momentum": 0.9}
ADAM_OPTIONS: dict[str, Any] = {"lr": 1e-3}
WORKLOADS = ("digits", "stdlib-lm-tiny")
HEAD = ("net", "kept as", "a step, times full precision", "quartiles")


def converted(model: nn.Module, **quantizers: str) -> torch.optim.Optimizer:
    """An optimizer of a model that is kept as codes from here on."""
    lpmm.convert(model, **quantizers)
    return lpmm.LPMMSGD(model.parameters(), **OPTIONS)


def converted_adam(model: nn.Module, params: str = PARAMS) -> torch.optim.Optimizer:
    """The same with Adam."""
    lpmm.convert(model, params)
    return lpmm.LPMMAdam(model.parameters(), **ADAM_OPTIONS)


CONTENDERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    PLAIN: lambda model: torch.optim.SGD(model.parameters(), **OPTIONS),
    "12/8/8 bits": converted,
    "8/8/8 bits": lambda model: converted(model, params="B2048/linear0@8s+sr"),
    PLAIN_ADAM: lambda model: torch.optim.Adam(model.parameters(), **ADAM_OPTIONS),
    "12/8/8/8 bits, LPMMAdam": converted_adam,
}


def baseline(label: str) -> str:
    """The contender that another one is divided by."""
    return PLAIN_ADAM if "Adam" in label else PLAIN


def stepping(workload: Workload, make: Callable[[nn.Module], torch.optim.Optimizer]) -> Work:
    """Training steps, one a call."""
    model = workload.model(0)
    optimizer = make(model)
    numbers = counted(1)

    def step() -> None:
        workload.loss(model, workload.batch(next(numbers), 0)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure(name: str, rounds: int) -> dict[str, dict[str, float]]:
    """Ratios to full precision with the same rule, by contender."""
    workload = workloads.get(name)
    works = {label: stepping(workload, make) for label, make in CONTENDERS.items()}
    seconds, failed = interleaved(works, rounds)
    for error in failed.values():
        raise error
    return {label: ratio(seconds[label], seconds[baseline(label)]) for label in works}


EIGHT_BITS = "32-bit parameters (AdamW8bit)"
ALONE: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    EIGHT_BITS: lambda model: optim.AdamW8bit(model.parameters()),
    "the same with `+sr` states": lambda model: optim.AdamW(
        model.parameters(), state_quantizers="B256/DE@8s+sr + B256/DE-0@8u+sr"
    ),
    "12/8/8/8 bits, LPMMAdam": CONTENDERS["12/8/8/8 bits, LPMMAdam"],
    "8/8/8/8 bits, LPMMAdam": lambda model: converted_adam(model, "B2048/linear0@8s+sr"),
    "12/8/8 bits, LPMMSGD": CONTENDERS["12/8/8 bits"],
    "8/8/8 bits, LPMMSGD": CONTENDERS["8/8/8 bits"],
}
"""Optimizers whose steps are timed alone, the one that others are compared to first."""


def measure_alone(scale: float, rounds: int) -> dict[str, dict[str, float]]:
    """Ratios of processor time to 8-bit AdamW's, on one thread, and its time per element."""
    params = parameters(matrices(scale))
    fresh, models, works = new_gradients(params), [], {}
    for label, make in ALONE.items():
        model = nn.Module()
        for number, param in enumerate(params):
            model.register_parameter(f"p{number}", nn.Parameter(param.detach().clone()))
        models.append(model)
        works[label] = make(model).step

    def refresh(number: int) -> None:
        fresh(number)
        for model in models:
            for ours, param in zip(model.parameters(), params, strict=True):
                assert param.grad is not None
                ours.grad = param.grad.clone()

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds, failed = interleaved(works, rounds, refresh=refresh, clock=processor_time)
    finally:
        torch.set_num_threads(threads)
    for error in failed.values():
        raise error
    elements = sum(param.numel() for param in params)
    return {
        label: ratio(seconds[label], seconds[EIGHT_BITS])
        | {"ns": 1e9 * statistics.median(seconds[label]) / elements}
        for label in works
    }


def page(
    measured: dict[str, dict[str, dict[str, float]]],
    alone: dict[str, dict[str, float]],
    about: dict[str, Any],
) -> str:
    """The ratios in Markdown."""
    rows = [
        (
            name,
            label,
            f"{ratio_row['ratio']:.2f}",
            f"{ratio_row['q1']:.2f} to {ratio_row['q3']:.2f}",
        )
        for name, ratios in measured.items()
        for label, ratio_row in ratios.items()
    ]
    lines = [
        "# Training steps in low precision",
        "",
        f"`{about['command']}`",
        "",
        f"{about['machine']['processor']}, torch {about['versions']['torch']}, {about['threads']} "
        "threads. Ratios of medians over interleaved rounds, with the quartiles of the rounds. "
        "Parameters, gradients and moments, in this order, are codes; a layer's 32-bit values are "
        "there while it is at work.",
        "",
        *table_lines(HEAD, rows),
        "",
        "The optimizer's step alone, on four large matrices: processor time on one thread, so that "
        "only the step's own work counts. A step decodes and encodes what is kept as codes, the "
        "gradient included, and empties it.",
        "",
        *table_lines(
            ("kept as", "times AdamW8bit", "quartiles", "ns per parameter"),
            [
                (
                    label,
                    f"{ratio_row['ratio']:.2f}",
                    f"{ratio_row['q1']:.2f} to {ratio_row['q3']:.2f}",
                    f"{ratio_row['ns']:.1f}",
                )
                for label, ratio_row in alone.items()
            ],
        ),
    ]
    return "\n".join(lines) + "\n"


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lpmm_step", description=__doc__)
    parser.add_argument(
        "workload", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)}"
    )
    parser.add_argument("--rounds", type=count, default=30, help="that count (default 30)")
    parser.add_argument(
        "--scale",
        type=positive,
        default=1 / 16,
        help="of the four matrices (default 1/16: 1024 x 1024)",
    )
    parser.add_argument("--out", type=Path, default=Path("reports/lpmm"), help="folder for results")
    options = parser.parse_args(argv)
    if unknown := [name for name in options.workload if name not in WORKLOADS]:
        parser.error(f"WORKLOAD={unknown[0]!r} is none of {', '.join(WORKLOADS)}")
    out = output_folder(options.out)
    measured = {name: measure(name, options.rounds) for name in options.workload or WORKLOADS}
    about = machine.about(sys.argv[1:] if argv is None else argv, "benchmarks.lpmm_step")
    alone = measure_alone(options.scale, options.rounds)
    write_json(out / "step.json", {"about": about, "ratios": measured, "alone": alone})
    write_report(out / "step.md", page(measured, alone, about))
    print((out / "step.md").read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
