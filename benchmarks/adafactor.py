"""Steps of Adafactor with 8-bit states beside those of other optimizers.

``python -m benchmarks.adafactor`` steps the same four matrices by each in its turn in every round,
and writes reports/adafactor.{json,md}. Our 8-bit states are quantized whatever their size, means of
rows and columns included, which `Adafactor8bit` itself leaves in 32 bits up to 4096 of them.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import machine
from benchmarks.case import forms, prepared, skip
from benchmarks.cases.adamw import TORCH, eight_bit_peers
from benchmarks.cases.factored import FIXED, MOMENTUM
from benchmarks.command import count, one_line_errors
from benchmarks.data import matrices, new_gradients, parameters
from benchmarks.markdown import markdown as table_lines
from benchmarks.neighbours import Neighbours
from benchmarks.timing import Work, interleaved, ratio
from qmaps import optim
from qmaps.storage.files import output_folder, write_json
from reproduction.report_file import write_report

OURS = "Adafactor8bit"
HEAD = ("optimizer", "a step, times that of `Adafactor8bit`", "quartiles")
ALL = {"min_quantized_size": 0}
CONTENDERS: dict[str, Callable[[list[Tensor]], Work]] = {
    OURS: lambda params: optim.Adafactor8bit(params, **FIXED, **ALL).step,
    "Adafactor8bit, first moment": lambda params: (
        optim.Adafactor8bit(params, **MOMENTUM, **ALL).step
    ),
    "Adafactor8bit, not factored": (
        lambda params: optim.Adafactor8bit(params, factored=False, **FIXED, **ALL).step
    ),
    "Adafactor, 32 bits": lambda params: optim.Adafactor(params, **FIXED).step,
    "AdamW8bit": lambda params: optim.AdamW8bit(params).step,
    "torch Adafactor, foreach": lambda params: torch.optim.Adafactor(params, foreach=True).step,
    "torch AdamW, fused": lambda params: torch.optim.AdamW(params, **TORCH["torch fused"]).step,
    **{f"{name} AdamW8bit": prepare for name, prepare in eight_bit_peers().items()},
}


def processor_time(work: Work) -> float:
    """Seconds of this process that one call takes; those of one thread, if it has no more."""
    start = time.process_time()
    work()
    return time.process_time() - start


def measure(scale: float, rounds: int, budget: float = math.inf) -> dict[str, Any]:
    """Ratios to `OURS`, what was skipped and why, and how busy other programs were."""
    params = parameters(matrices(scale))
    works, skipped = prepared({name: partial(make, params) for name, make in CONTENDERS.items()})
    with Neighbours() as neighbours:
        seconds, failed = interleaved(
            works, rounds, refresh=new_gradients(params), budget=budget, clock=processor_time
        )
    for name, error in failed.items():
        skip(skipped, name, error)
    return {
        "shapes": [list(p.shape) for p in params],
        "ratios": {name: ratio(times, seconds[OURS]) for name, times in seconds.items()},
        "forms": forms(works, seconds),
        "skipped": skipped,
        "others_cpu": neighbours.share,
    }


def page(measured: dict[str, Any], about: dict[str, Any]) -> str:
    """The ratios in Markdown."""
    rows = [
        (name, f"{ratio_row['ratio']:.2f}", f"{ratio_row['q1']:.2f} to {ratio_row['q3']:.2f}")
        for name, ratio_row in measured["ratios"].items()
    ]
    shapes = ", ".join(" x ".join(map(str, shape)) for shape in measured["shapes"])
    lines = [
        "# Steps of Adafactor with 8-bit states",
        "",
        f"`{about['command']}`",
        "",
        "Ratios of medians over interleaved rounds, with the quartiles of the rounds, in seconds "
        "of processor time on one thread: waiting for other programs does not count. Parameters: "
        f"{shapes}. Our 8-bit states are all quantized (`min_quantized_size=0`).",
        *(f"{name}: {form}." for name, form in measured["forms"].items()),
        *_busy(measured["others_cpu"]),
        "",
        *table_lines(HEAD, rows),
        *(f"\n{name} is left out: {why}." for name, why in measured["skipped"].items()),
    ]
    return "\n".join(lines) + "\n"


def _busy(share: float | None) -> list[str]:
    if share is None:
        return []
    return [f"Other programs took {share:.0%} of the processors meanwhile."]


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adafactor", description=__doc__)
    parser.add_argument("--rounds", type=count, default=15, help="that count (default 15)")
    parser.add_argument("--scale", type=float, default=1.0, help="of the parameters (default 1)")
    parser.add_argument("--out", type=Path, default=Path("reports"), help="folder for results")
    options = parser.parse_args(argv)
    if not 0 < options.scale <= 1:
        parser.error(f"--scale {options.scale:g} must be above 0 and at most 1")
    out = output_folder(options.out)
    torch.set_num_threads(1)
    measured = measure(options.scale, options.rounds, budget=60.0)
    about = machine.about(sys.argv[1:] if argv is None else argv, "benchmarks.adafactor")
    write_json(out / "adafactor.json", {"about": about, **measured})
    write_report(out / "adafactor.md", page(measured, about))
    print((out / "adafactor.md").read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
