"""Cost of a whole training step: forward, backward and AdamW, in time and memory.

``python -m benchmarks.training`` trains workloads of the laboratory, and a GPT as wide as GPT-2
small (`OWN`), with AdamW in 32, 8 and 4 bits and with those of torch, bitsandbytes and torchao, in
turns in one process, and measures memory in a fresh process for each. It writes
reports/bench/training.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks import machine
from benchmarks.case import prepared, reason
from benchmarks.cases.adamw import FUSED, TORCH
from benchmarks.command import among, one_line_errors, study_options, written
from benchmarks.markdown import markdown
from benchmarks.peers import BITSANDBYTES, TORCHAO, need, torchao
from benchmarks.process import in_fresh_process, peak, resident
from benchmarks.timing import Work, interleaved, quartiles, ratio, stopwatch
from qmaps import optim
from qmaps.lab.workloads import Workload
from qmaps.lab.workloads.gpt import GPTShape
from qmaps.lab.workloads.stdlib_lm import StdlibLM
from qmaps.storage.files import output_folder
from reproduction import workloads

GPT2 = GPTShape(vocabulary=16384, width=768, layers=4, heads=12)
OWN: dict[str, Callable[[], Workload]] = {
    "gpt2-4-layers": lambda: StdlibLM(shape=GPT2, batch_size=2),
}
"""Workloads of this benchmark alone; no one trains them to the end."""
ABOUT = {
    "gpt2-4-layers": "Layers of GPT-2 small, 4 of its 12, with random weights and a vocabulary of "
    "16384, so that all contenders fit into the memory of a small machine. A step takes 2 "
    "sequences of 128 tokens; with more tokens AdamW's share is smaller."
}
NAMES = [*OWN, *workloads.names()]
DEFAULT = ("gpt2-4-layers", "minilm")
WARM_UPS = 3
Step = Callable[[list[Tensor]], Work]


def _bound(make: Callable[[list[Tensor]], torch.optim.Optimizer]) -> Step:
    return lambda params: make(params).step


METHODS: dict[str, Step] = {
    FUSED: _bound(lambda params: torch.optim.AdamW(params, lr=1e-4, **TORCH[FUSED])),
    "torch foreach": _bound(lambda params: torch.optim.AdamW(params, lr=1e-4, foreach=True)),
    "qmaps 32 bits": _bound(lambda params: optim.AdamW(params, lr=1e-4)),
    "qmaps 8 bits": _bound(lambda params: optim.AdamW8bit(params, lr=1e-4)),
    "qmaps 4 bits": _bound(lambda params: optim.AdamW4bit(params, lr=1e-4)),
    f"{BITSANDBYTES} 8 bits": _bound(
        lambda params: need("bitsandbytes").optim.AdamW8bit(params, lr=1e-4)
    ),
    f"{TORCHAO} 8 bits": torchao("AdamW8bit", lr=1e-4),
    f"{TORCHAO} 4 bits": torchao("AdamW4bit", lr=1e-4),
}


class Training:
    """Training of a model, one step at each call.

    Attributes:
        seconds: seconds of the optimizer in each step.
    """

    def __init__(self, workload: Workload, step: Step) -> None:
        self.workload = workload
        self.model = workload.model(0)
        self.params = [p for p in self.model.parameters() if p.requires_grad]
        self.step = step(self.params)
        self.seconds: list[float] = []
        self.number = 0

    def __call__(self) -> None:
        """One step."""
        self.number += 1
        loss = self.workload.loss(self.model, self.workload.batch(self.number, 0))
        for p in self.params:
            p.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        self.seconds.append(stopwatch(self.step))


def get(name: str) -> Workload:
    """A workload of the benchmark's own or of the laboratory."""
    return OWN[name]() if name in OWN else workloads.get(name)


def times(name: str, rounds: int) -> dict[str, Any]:
    """Seconds of whole steps and of optimizers, by method, and who cannot run."""
    workload = get(name)
    works, skipped = prepared(
        {method: lambda step=step: Training(workload, step) for method, step in METHODS.items()}
    )
    seconds, failed = interleaved(works, rounds, warm_ups=WARM_UPS)
    skipped |= {method: reason(error) for method, error in failed.items()}
    parts = {
        method: works[method].seconds[  # type: ignore[attr-defined]
            -len(seconds[method]) :
        ]
        for method in seconds
    }
    return {"seconds": seconds, "optimizer": parts, "skipped": skipped}


def memory(name: str, method: str) -> dict[str, float | None]:
    """MiB of this process from the model on: between steps, and at most in one."""
    workload = get(name)
    workload.batch(1, 0)  # data and packages are there before the model
    before = resident()
    training = Training(workload, METHODS[method])
    for _ in range(WARM_UPS):
        training()
    between = resident()
    more = peak(training)
    if before is None or between is None or more is None:
        return {"resident": None, "peak": None}
    return {"resident": between - before, "peak": between - before + more}


def measure(name: str, rounds: int) -> dict[str, Any]:
    """All of one workload."""
    timed = times(name, rounds)
    skipped, held = timed["skipped"], {}
    for method in timed["seconds"]:
        try:
            held[method] = in_fresh_process("benchmarks.training", name, "--memory-of", method)
        except RuntimeError as error:
            skipped[f"memory of {method}"] = str(error)
    return {**timed, "memory": held}


def rows(workload: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Cells of a workload's table."""
    base = workload["seconds"].get(FUSED)
    cells = []
    for name, seconds in workload["seconds"].items():
        total = quartiles(seconds)["median"]
        part = quartiles(workload["optimizer"][name])["median"]
        held = workload["memory"].get(name, {})
        beside = ratio(seconds, base) if base else None
        cells.append(
            (
                name,
                f"{1e3 * total:.0f}",
                f"{part / total:.1%}",
                f"{beside['ratio']:.3f} ({beside['q1']:.3f} to {beside['q3']:.3f})"
                if beside
                else "",
                *(_mebibytes(held.get(key)) for key in ("resident", "peak")),
            )
        )
    return cells


def _mebibytes(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def page(results: Mapping[str, Any]) -> str:
    """The report."""
    lines = [
        "# A whole training step",
        "",
        *machine.described(results["about"]),
        "",
        "Forward, backward and AdamW's step. Contenders take turns "
        "in one process; times are medians, ratios those of the medians with the quartiles of the "
        "rounds. Memory is that of a fresh process from the model on: parameters, gradients and "
        "states between two steps, and with activations at most in one.",
        "",
    ]
    head = ("AdamW", "ms a step", "of it AdamW", "beside torch fused", "MiB between", "MiB at most")
    for name, result in results["workloads"].items():
        lines += [
            f"## {name}",
            "",
            f"{result['parameters'] / 1e6:.1f} million parameters. {ABOUT.get(name, '')}".rstrip(),
            "",
            *markdown(head, rows(result)),
            "",
            *(f"- {method} is left out: {why}" for method, why in result["skipped"].items()),
        ]
    return "\n".join(lines).rstrip() + "\n"


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = study_options("benchmarks.training", __doc__, rounds=15, out="reports/bench")
    parser.add_argument("result", nargs="*", default=list(DEFAULT), metavar="WORKLOAD",
                        help=f"any of {', '.join(NAMES)}")  # fmt: skip
    parser.add_argument("--memory-of", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    among(parser, "result", options.result, NAMES)
    if options.memory_of:
        print(json.dumps(memory(options.result[0], options.memory_of)))
        return 0
    output_folder(options.out)
    results: dict[str, Any] = {
        "about": machine.about(argv, "benchmarks.training"),
        "workloads": {},
    }
    for name in options.result:
        model = get(name).model(0)
        parameters = sum(p.numel() for p in model.parameters())
        results["workloads"][name] = {"parameters": parameters, **measure(name, options.rounds)}
    return written(options.out, "training", page(results), results)


if __name__ == "__main__":
    sys.exit(main())
