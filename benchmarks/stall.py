"""Lion on least squares of full batches: a momentum that is rounded to nearest stops moving.

``python -m benchmarks.stall`` fits 64 by 96 weights in 500 steps, the learning rate falling from
0.01 to 0, and writes reports/stall.md: the loss at the end, relative to that of zero weights.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.command import command_line, one_line_errors
from benchmarks.markdown import markdown
from benchmarks.peers import BITSANDBYTES, need
from qmaps import optim
from qmaps.storage.files import output_folder
from reproduction.report_file import write_report

STEPS, LR, ROWS = 500, 0.01, 512
Make = Callable[[list[Tensor]], torch.optim.Optimizer]


def bitsandbytes(parameters: list[Tensor]) -> torch.optim.Optimizer:
    """Return Lion8bit of bitsandbytes."""
    optimizer: torch.optim.Optimizer = need(BITSANDBYTES).optim.Lion8bit(parameters, lr=LR)
    return optimizer


OPTIMIZERS: dict[str, Make] = {
    "`Lion`, 32 bits": lambda p: optim.Lion(p, lr=LR),
    "`Lion8bit`": lambda p: optim.Lion8bit(p, lr=LR),
    "`Lion8bit` of bitsandbytes": bitsandbytes,
    "`Lion`, `B256/DE@8s+sr`": lambda p: optim.Lion(
        p, lr=LR, state_quantizers={"exp_avg": "B256/DE@8s+sr"}
    ),
    "`Lion4bit`": lambda p: optim.Lion4bit(p, lr=LR),
}


def final_loss(make: Make, steps: int, seed: int) -> float:
    """Return the loss after training, relative to that of zero weights."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, 96, generator=generator)
    y = x @ torch.randn(96, 64, generator=generator)
    weight = torch.nn.Parameter(torch.zeros(64, 96))
    optimizer = make([weight])
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = LR * (1 - step / steps)
        optimizer.zero_grad()
        (x @ weight.T - y).square().mean().backward()
        optimizer.step()
    with torch.no_grad():
        return float((x @ weight.T - y).square().mean() / y.square().mean())


def page(losses: dict[str, Sequence[float]], command: str) -> str:
    """The report."""
    return "\n".join(
        [
            "# Lion with a momentum rounded to nearest",
            "",
            f"`{command}`",
            "",
            f"Least squares of full batches: {ROWS} rows, 64 by 96 weights, {STEPS} steps, the "
            f"learning rate falling from {LR:g} to 0. A step changes the momentum by 1 % of its "
            "distance to the gradient. Where that is less than half the distance to the next code, "
            "rounding to nearest leaves the code as it is. Losses at the end are relative to that "
            "of zero weights: mean, and the least and the largest over seeds.",
            "",
            *markdown(
                ("optimizer", "seeds", "relative loss", "least", "largest"),
                [
                    (name, str(len(row)), f"{sum(row) / len(row):.4f}", *ends(row))
                    for name, row in losses.items()
                ],
            ),
            "",
        ]
    )


def ends(row: Iterable[float]) -> tuple[str, str]:
    """Return the least and the largest number as text."""
    return f"{min(row):.4f}", f"{max(row):.4f}"


@one_line_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stall", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=Path("reports"))
    options = parser.parse_args(arguments)
    losses = {
        name: [final_loss(make, options.steps, seed) for seed in range(options.seeds)]
        for name, make in OPTIMIZERS.items()
    }
    text = page(losses, command_line("benchmarks.stall", arguments))
    write_report(output_folder(options.out) / "stall.md", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
