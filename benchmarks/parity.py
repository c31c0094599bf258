"""Final validation loss of every optimizer in 32, 8 and 4 bits, and with the 4-bit paper's pair.

``python -m benchmarks.parity digits stdlib-lm-tiny`` trains each with several seeds, goes on where
it was stopped, and writes reports/parity.{csv,md}: the loss, and its distance to the same optimizer
in 32 bits, seed by seed, in units of the spread of the 32-bit runs over seeds. Its rates are not
tuned; ``python -m benchmarks.losses parity`` compares at tuned ones.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from benchmarks.command import command_line, one_line_errors
from benchmarks.markdown import UNTUNED
from benchmarks.markdown import markdown as table_lines
from qmaps import optim
from qmaps.errors import BadValueError
from qmaps.lab import workloads
from qmaps.lab.workloads import Workload, train
from qmaps.storage.files import output_folder, replacing, write_text

WIDTHS = ("32bit", "8bit", "4bit", "paper-4bit")
"""Presets; what reproduces the 4-bit paper reads the last one."""
HEAD = ("optimizer", "width", "seeds", "loss", "spread", "minus 32 bits", "in spreads", "MiB")
LIMIT = 2.0
"""Spreads beyond which a preset has to be explained."""


@dataclass(frozen=True)
class Family:
    """An optimizer and how it is trained.

    Attributes:
        kind: its class.
        rate: its learning rate, in units of the workload's, which is that of AdamW.
        options: others that are not its own defaults.
        kinds: classes of their own for some widths.
    """

    kind: type[optim.QuantizedOptimizer]
    rate: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)
    kinds: dict[str, type[optim.QuantizedOptimizer]] = field(default_factory=dict)

    def make(self, width: str, model: nn.Module, workload: Workload) -> torch.optim.Optimizer:
        """The optimizer of one width."""
        options = {"lr": workload.lr * self.rate, **self.options}
        if width not in WIDTHS:
            return self.kind(model.named_parameters(), state_quantizers=pair(width), **options)
        if width in self.kinds:
            return self.kinds[width](model.named_parameters(), **options)
        return self.kind(model.named_parameters(), state_quantizers=width, **options)


FAMILIES = {
    "Adam": Family(optim.Adam),
    "AdamW": Family(optim.AdamW),
    "SGD": Family(optim.SGD, 100, {"momentum": 0.9, "nesterov": True}),
    "RMSprop": Family(optim.RMSprop, 0.5, {"momentum": 0.5}),
    "Adagrad": Family(optim.Adagrad, 10),
    "Lion": Family(optim.Lion),
    "LAMB": Family(optim.LAMB, 20),
    "LARS": Family(optim.LARS, 5000),
    "AdEMAMix": Family(optim.AdEMAMix),
    "AdamWFactor": Family(optim.AdamWFactor, kinds={"4bit": optim.AdamW4bitFactor}),
    "SM3": Family(optim.SM3, 100),
    "Adafactor": Family(
        optim.Adafactor,
        options={"relative_step": False, "scale_parameter": False},
        kinds={"8bit": optim.Adafactor8bit},
    ),
}


def pair(text: str) -> dict[str, str | None]:
    """Quantizers of Adam's moments from ``"B128/DE@4s + 32bit"``."""
    names = ("exp_avg", "exp_avg_sq")
    specs = [None if part == "32bit" else part for part in text.split(" + ")]
    if len(specs) != len(names):
        raise BadValueError(f"--pair {text!r} must be two specs with ' + ' between them")
    return dict(zip(names, specs, strict=True))


def run(
    workload: Workload, name: str, width: str, seed: int, steps: int | None, out: Path
) -> dict[str, Any]:
    """One training run, or what an earlier one left."""
    family = FAMILIES[name]
    # "DE-0" and "DE" are others.
    plain = width.replace("-", "minus").replace("+", "plus")
    folder = re.sub(r"\W+", "-", f"{workload.name}-{name}-{plain}-seed{seed}".lower())
    done = train(
        workload,
        lambda model, work: family.make(width, model, work),
        out=out / folder,
        label=f"{name} {width}",
        seed=seed,
        steps=steps,
    )
    return {
        "workload": workload.name,
        "optimizer": name,
        "width": width,
        "seed": seed,
        "steps": done.steps,
        "loss": done.final["loss"],
        "state_mib": done.state_nbytes / 2**20,
    }


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per workload, optimizer and width.

    Args:
        frame: the rows of `run`.

    Returns:
        `workload`, `optimizer`, `width`, `seeds`, `loss` (mean), `spread` (sample standard
        deviation of the 32-bit runs over seeds), `difference` (mean over seeds of the loss minus
        that of 32 bits), `in_spreads`, `state_mib`.
    """
    keys = ["workload", "optimizer"]
    full = frame[frame["width"] == WIDTHS[0]]
    spread = full.groupby(keys)["loss"].std().rename("spread")
    of_seed = full.set_index([*keys, "seed"])["loss"].rename("full")
    joined = frame.join(of_seed, on=[*keys, "seed"])
    joined["difference"] = joined["loss"] - joined["full"]
    grouped = joined.groupby([*keys, "width"], sort=False)
    table = pd.DataFrame(
        {
            "seeds": grouped["seed"].count(),
            "loss": grouped["loss"].mean(),
            "difference": grouped["difference"].mean(),
            "state_mib": grouped["state_mib"].first(),
        }
    ).reset_index()
    table = table.join(spread, on=keys)
    table["in_spreads"] = table["difference"] / table["spread"]
    return table


def markdown(table: pd.DataFrame, command: str) -> str:
    """The summary as a page."""
    lines = [
        "# Training parity",
        "",
        f"`{command}`",
        "",
        f"torch {torch.__version__}, {torch.get_num_threads()} threads. Final validation loss, "
        "mean over seeds. The difference to 32 bits is taken seed by seed, on the same weights and "
        f"batches; its unit is the spread of the 32-bit runs over seeds. Beyond {LIMIT:g} spreads "
        "it stands in bold. " + UNTUNED.format("judges.md"),
    ]
    for workload, part in table.groupby("workload", sort=False):
        cells = []
        for row in part.to_dict("records"):
            off = f"{row['in_spreads']:+.2f}"
            cells.append(
                [
                    row["optimizer"],
                    row["width"],
                    str(row["seeds"]),
                    f"{row['loss']:.4f}",
                    f"{row['spread']:.4f}",
                    f"{row['difference']:+.4f}",
                    f"**{off}**" if row["in_spreads"] > LIMIT else off,
                    f"{row['state_mib']:.3f}",
                ]
            )
        lines += ["", f"## {workload}", "", *table_lines(HEAD, cells)]
    return "\n".join(lines) + "\n"


@one_line_errors
def main(given: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parity", description=__doc__)
    parser.add_argument("workload", nargs="+", choices=["digits", "stdlib-lm-tiny", "stdlib-lm"])
    known = ", ".join(FAMILIES)
    parser.add_argument(
        "--optimizer",
        action="append",
        choices=list(FAMILIES),
        metavar="NAME",
        help=f"one of {known}; may be repeated (default: all)",
    )
    parser.add_argument(
        "--pair",
        action="append",
        default=[],
        metavar="SPECS",
        help="AdamW with these quantizers too, as 'B128/DE@4s+sr + 32bit'; may be repeated",
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="of each run (default: the workload's)")
    parser.add_argument("--runs", type=Path, default=Path("runs/parity"), help="run folders")
    parser.add_argument("--out", type=Path, default=Path("reports"), help="folder of the results")
    parser.add_argument("--name", default="parity", help="name of the results")
    options = parser.parse_args(given)
    output_folder(options.out)
    for text in options.pair:
        pair(text)
    names = options.optimizer or list(FAMILIES)
    found = []
    plan = [
        (workloads.get(work), name, width, seed)
        for work in options.workload
        for name in names
        for width in [*WIDTHS, *(options.pair if name == "AdamW" else [])]
        for seed in range(options.seeds)
    ]
    for number, (work, name, width, seed) in enumerate(plan, 1):
        row = run(work, name, width, seed, options.steps, options.runs)
        found.append(row)
        print(
            f"{number}/{len(plan)} {work.name} {name} {width} seed {seed}: {row['loss']:.4f}",
            flush=True,
        )
    frame = pd.DataFrame(found)
    command = command_line("benchmarks.parity", given)
    with replacing(options.out / f"{options.name}.csv") as temporary:
        frame.to_csv(temporary, index=False)
    write_text(options.out / f"{options.name}.md", markdown(summary(frame), command))
    return 0


if __name__ == "__main__":
    sys.exit(main())
