"""Final validation loss of LPMM-SGDM beside SGD with momentum in full precision.

``python -m benchmarks.lpmm digits stdlib-lm-tiny`` runs the ablation of Tables 2 and 3: parameters
of 12, 10 and 8 bits under 8-bit gradients and momentum, rounded to nearest, stochastically, and
stochastically with N micro-batches a step. ``--headline`` runs 12/8/8 against full precision alone.
It goes on where it was stopped and writes reports/lpmm/NAME.{csv,md}.

All runs see the same micro-batches at the same learning rate, so that one of N micro-batches takes
an N-th of the steps with the sum of N gradients; it stands beside full precision of the same N.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from benchmarks.command import command_line, one_line_errors
from benchmarks.lpmm.claims import claims
from benchmarks.markdown import markdown as table_lines
from benchmarks.markdown import verdicts
from qmaps import lpmm
from qmaps.lab import workloads
from qmaps.lab.workloads import Workload, train
from qmaps.storage.files import output_folder, replacing
from reproduction.report_file import write_report

RATE = 25
"""Learning rate in units of the workload's, which is that of AdamW."""
STEPS = {"digits": 1000, "stdlib-lm-tiny": 500}
"""Micro-batches, where the workload's own number leaves too few steps of 16."""

HEAD = ("parameters", "rounding", "N", "seeds", "loss", "minus full", "in spreads")


@dataclass(frozen=True)
class Contender:
    """Formats of one run's model.

    Attributes:
        bits: of the parameters; None for all in full precision.
        stochastic: how parameters, gradients and momentum are rounded.
        n: micro-batches of a step.
        rate: learning rate in units of the workload's.
    """

    bits: int | None = None
    stochastic: bool = True
    n: int = 1
    rate: float = RATE

    @property
    def rounding(self) -> str:
        """In words."""
        return "" if self.bits is None else "stochastic" if self.stochastic else "nearest"

    @property
    def label(self) -> str:
        """A name for messages and folders."""
        kind = "full" if self.bits is None else f"{self.bits}-8-8 {self.rounding}"
        return f"{kind} N={self.n}"

    def make(self, model: nn.Module, workload: Workload) -> torch.optim.Optimizer:
        """Convert the model, where it is to be, and make its optimizer."""
        sr = "+sr" if self.stochastic else ""
        momentum = None if self.bits is None else f"B2048/DE@8s{sr}"
        if self.bits is not None:
            lpmm.convert(model, f"B2048/linear0@{self.bits}s{sr}", f"B2048/linear0@8s{sr}")
        return lpmm.LPMMSGD(
            model.named_parameters(),
            lr=workload.lr * self.rate,
            momentum=0.9,
            accumulation_steps=self.n,
            state_quantizers={"momentum_buffer": momentum},
            nonfinite="propagate",  # a run that diverges is a result
        )


HEADLINE = (Contender(), Contender(12))


def grid(most: int) -> list[Contender]:
    """Full precision and every width, rounding and N of 1, 2, 4, ... up to `most`."""
    ns = [n for n in (1, 2, 4, 8, 16) if n <= most]
    contenders = [Contender(n=n) for n in ns]
    for bits in (12, 10, 8):
        contenders += [Contender(bits, False), *(Contender(bits, True, n) for n in ns)]
    return contenders


def run(
    workload: Workload, contender: Contender, seed: int, steps: int | None, out: Path
) -> dict[str, Any]:
    """One training run, or what an earlier one left."""
    folder = re.sub(r"\W+", "-", f"{workload.name}-{contender.label}-seed{seed}".lower())
    steps = steps or STEPS.get(workload.name)
    done = train(
        workload,
        contender.make,
        out=out / folder,
        label=contender.label,
        seed=seed,
        steps=steps,
    )
    return {
        "workload": workload.name,
        "parameters": "32" if contender.bits is None else str(contender.bits),
        "rounding": contender.rounding,
        "N": contender.n,
        "seed": seed,
        "steps": done.steps,
        "loss": done.final["loss"],
    }


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per workload, width, rounding and N.

    Args:
        frame: the rows of `run`.

    Returns:
        Means over seeds of `loss` and of its `difference` to full precision with the same N, and
        `in_spreads`: the difference in sample standard deviations of that over seeds.
    """
    keys = ["workload", "N"]
    full = frame[frame["parameters"] == "32"]
    spread = full.groupby(keys)["loss"].std().rename("spread")
    of_seed = full.set_index([*keys, "seed"])["loss"].rename("full")
    joined = frame.join(of_seed, on=[*keys, "seed"])
    joined["difference"] = joined["loss"] - joined["full"]
    grouped = joined.groupby(["workload", "parameters", "rounding", "N"], sort=False)
    table = grouped.agg(
        seeds=("seed", "count"), loss=("loss", "mean"), difference=("difference", "mean")
    ).reset_index()
    table = table.join(spread, on=keys)
    table["in_spreads"] = table["difference"] / table["spread"]
    return table


def markdown(table: pd.DataFrame, command: str) -> str:
    """The summary as a page."""
    lines = [
        "# LPMM-SGDM beside full precision",
        "",
        f"`{command}`",
        "",
        f"torch {torch.__version__}, {torch.get_num_threads()} threads. Final validation loss, "
        "mean over seeds; gradients and momentum have 8 bits. The difference is taken seed by seed "
        "to full precision with the same N micro-batches a step; its unit is the spread of those "
        "runs over seeds.",
    ]
    for workload, part in table.groupby("workload", sort=False):
        cells = [
            [
                f"{row['parameters']} bits",
                row["rounding"] or "-",
                str(row["N"]),
                str(row["seeds"]),
                f"{row['loss']:.4f}",
                f"{row['difference']:+.4f}",
                f"{row['in_spreads']:+.2f}",
            ]
            for row in part.to_dict("records")
        ]
        lines += ["", f"## {workload}", "", *table_lines(HEAD, cells)]
        if {"nearest", "stochastic"} <= set(part["rounding"]) and part["N"].max() > 1:
            said = verdicts(claims(part))
            lines += ["", "What the paper says of its nets, and these runs:", "", *said]
    return "\n".join(lines) + "\n"


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lpmm", description=__doc__)
    parser.add_argument("workload", nargs="+", choices=["digits", "stdlib-lm-tiny", "stdlib-lm"])
    parser.add_argument("--headline", action="store_true", help="12/8/8 and full precision alone")
    parser.add_argument("--most", type=int, default=16, help="largest N of the ablation")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="micro-batches (default: enough for N)")
    parser.add_argument("--runs", type=Path, default=Path("runs/lpmm"), help="run folders")
    parser.add_argument("--out", type=Path, default=Path("reports/lpmm"), help="of the results")
    options = parser.parse_args(argv)
    chosen = list(HEADLINE) if options.headline else grid(options.most)
    name = "headline" if options.headline else "ablation"
    output_folder(options.out)
    plan = [
        (workloads.get(work), contender, seed)
        for work in options.workload
        for contender in chosen
        for seed in range(options.seeds)
    ]
    frames = []
    for number, (work, contender, seed) in enumerate(plan, 1):
        row = run(work, contender, seed, options.steps, options.runs)
        frames.append(row)
        about = f"{work.name} {contender.label} seed {seed}"
        print(f"{number}/{len(plan)} {about}: {row['loss']:.4f}", flush=True)
    frame = pd.DataFrame(frames)
    command = command_line("benchmarks.lpmm", argv)
    with replacing(options.out / f"{name}.csv") as temporary:
        frame.to_csv(temporary, index=False)
    write_report(options.out / f"{name}.md", markdown(summary(frame), command))
    return 0


if __name__ == "__main__":
    sys.exit(main())
