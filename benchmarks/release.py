"""Peak memory of a training step with gradient release, beside the plain loop.

``python -m benchmarks.release`` trains a stack of linear layers with each optimizer both ways, each
in a fresh process, and writes reports/release.md. The losses of both ways must be equal.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from benchmarks.command import command_line, one_line_errors, study_options, written
from benchmarks.markdown import markdown
from benchmarks.process import in_fresh_process, peak
from qmaps import optim
from qmaps.errors import BadValueError

OPTIMIZERS = ("AdamW", "AdamW8bit", "AdamW4bit", "Adafactor8bit")
PLAIN, RELEASED = "plain", "released"
LAYERS, WIDTH, STEPS = 16, 2048, 2
MIB = 2**20


def measure(name: str, way: str, layers: int, width: int) -> dict[str, Any]:
    """Sizes of a model in MiB, the peak of its third training step, and the losses."""
    torch.manual_seed(0)
    pairs = [layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.Tanh())]
    model = nn.Sequential(*pairs)
    optimizer = getattr(optim, name)(model.parameters(), lr=1e-4)
    if way == RELEASED:
        optim.release_gradients(model, optimizer)
    x = torch.randn(16, width)
    losses = []

    def step() -> None:
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))

    for _ in range(STEPS):
        step()
    rise = peak(step)
    size = sum(param.nbytes for param in model.parameters()) / MIB
    states = optimizer.state_nbytes / MIB
    return {"parameters": size, "states": states, "peak": rise, "losses": losses}


def rows(layers: int, width: int) -> list[tuple[str, ...]]:
    """Rows of the table.

    Raises:
        BadValueError: the losses of both ways differ, or the system does not tell a peak.
    """
    table = []
    for name in OPTIMIZERS:
        sizes = ("--layers", str(layers), "--width", str(width))
        plain, released = (
            in_fresh_process("benchmarks.release", "--one", name, way, *sizes)
            for way in (PLAIN, RELEASED)
        )
        if plain["losses"] != released["losses"]:
            raise BadValueError(f"losses of {name} differ: {plain['losses']} {released['losses']}")
        if plain["peak"] is None or released["peak"] is None:
            raise BadValueError("the peak of a process's memory is read from Linux's /proc")
        numbers = (plain["parameters"], plain["states"], plain["peak"], released["peak"])
        table.append((f"`{name}`", *(f"{number:.0f}" for number in numbers)))
    return table


def page(table: list[tuple[str, ...]], layers: int, width: int, command: str) -> str:
    """The report."""
    return "\n".join(
        [
            "# Memory of a training step with gradient release",
            "",
            f"`{command}`",
            "",
            f"{layers} linear layers of {width} by {width} in float32, a batch of 16 rows, on the "
            "CPU. A peak is what one training step (forward, backward, step) adds at most to the "
            "process's resident memory, which holds parameters and states before it. It is taken "
            "in the third step, each in a process of its own. With `release_gradients` each "
            "gradient is freed in the backward pass; the losses of both ways are equal.",
            "",
            *markdown(
                (
                    "optimizer",
                    "parameters, MiB",
                    "states, MiB",
                    "peak of the plain loop, MiB",
                    "peak with `release_gradients`, MiB",
                ),
                table,
            ),
            "",
        ]
    )


@one_line_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = study_options("benchmarks.release", __doc__)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--one", nargs=2, metavar=("OPTIMIZER", "WAY"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        optimizer, way = options.one
        print(json.dumps(measure(optimizer, way, options.layers, options.width)))
        return 0
    table = rows(options.layers, options.width)
    text = page(table, options.layers, options.width, command_line("benchmarks.release", arguments))
    return written(options.out, "release", text)


if __name__ == "__main__":
    sys.exit(main())
