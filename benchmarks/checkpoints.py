"""Size of an optimizer's checkpoint, and times to save and load it.

``python -m benchmarks.checkpoints`` gives each optimizer its turn in each round and writes
reports/checkpoints.{json,md}. Times are ratios of medians over rounds to those of torch's AdamW.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn

from benchmarks import machine
from benchmarks.command import count, one_line_errors, study_options, written
from benchmarks.markdown import markdown as table_lines
from benchmarks.timing import interleaved, ratio
from qmaps.optim import AdamW4bit, AdamW8bit
from qmaps.storage import checkpoint
from qmaps.storage.files import output_folder

TORCH = "torch.optim.AdamW"
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    TORCH: torch.optim.AdamW,
    "AdamW8bit": AdamW8bit,
    "AdamW4bit": AdamW4bit,
}
HEAD = ("optimizer", "bytes a parameter", "of torch", "saving, times torch", "loading, times torch")


def model(width: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))


def stepped(make: Callable[..., torch.optim.Optimizer], width: int) -> torch.optim.Optimizer:
    net = model(width)
    optimizer = make(net.parameters())
    for param in net.parameters():
        param.grad = torch.randn_like(param)
    optimizer.step()
    return optimizer


def measure(width: int, rounds: int, folder: Path) -> dict[str, dict[str, float]]:
    """Bytes, and seconds in every round, by optimizer."""
    optimizers = {name: stepped(make, width) for name, make in OPTIMIZERS.items()}
    numel = sum(param.numel() for param in model(width).parameters())
    paths = {name: folder / f"{number}.pt" for number, name in enumerate(optimizers)}
    saving, failed = interleaved(
        {
            name: lambda path=paths[name], optimizer=optimizer: checkpoint.save(
                optimizer.state_dict(), path
            )
            for name, optimizer in optimizers.items()
        },
        rounds,
    )
    loading, also_failed = interleaved(
        {
            name: lambda path=paths[name], optimizer=optimizer: optimizer.load_state_dict(
                checkpoint.load(path)
            )
            for name, optimizer in optimizers.items()
        },
        rounds,
    )
    if problems := {**failed, **also_failed}:
        raise next(iter(problems.values()))
    return {
        name: {
            "bytes": paths[name].stat().st_size / numel,
            "saving": ratio(saving[name], saving[TORCH])["ratio"],
            "loading": ratio(loading[name], loading[TORCH])["ratio"],
        }
        for name in optimizers
    }


def page(measured: dict[str, dict[str, float]], width: int, rounds: int) -> str:
    full_bytes = measured[TORCH]["bytes"]
    rows = [
        (
            name,
            f"{values['bytes']:.2f}",
            f"{values['bytes'] / full_bytes:.2f}",
            f"{values['saving']:.2f}",
            f"{values['loading']:.2f}",
        )
        for name, values in measured.items()
    ]
    lines = [
        "# Checkpoints of optimizers",
        "",
        f"`python -m benchmarks.checkpoints --width {width} --rounds {rounds}`: four linear layers "
        f"of {width} by {width}, `qmaps.storage.checkpoint.save` (which waits for the disk) and "
        "`load` "
        "with `load_state_dict`. Times are ratios of medians over interleaved rounds, on two cores "
        "that other work kept busy.",
        "",
        *table_lines(HEAD, rows),
    ]
    return "\n".join(lines) + "\n"


@one_line_errors
def main(arguments: Sequence[str] | None = None) -> int:
    parser = study_options("benchmarks.checkpoints", __doc__, rounds=9)
    parser.add_argument("--width", type=count, default=1024, help="of layers (default 1024)")
    options = parser.parse_args(arguments)
    output_folder(options.out)
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(options.width, options.rounds, Path(folder))
    results = {"about": machine.about(arguments, "benchmarks.checkpoints"), "found": measured}
    text = page(measured, options.width, options.rounds)
    return written(options.out, "checkpoints", text, results)


if __name__ == "__main__":
    sys.exit(main())
