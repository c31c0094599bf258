"""Final validation loss of the 4-bit paper's optimizers, each at the rate that is best for it.

``python -m benchmarks.tuned`` trains every row of table 2 at several multiples of the workload's
rate, and writes reports/tuned.{csv,md}. A rate is tuned by the row's own loss; more rates are tried
until the best lies inside their range.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from benchmarks.command import command_line, one_line_errors
from benchmarks.families import FAMILIES
from benchmarks.markdown import markdown as table_lines
from qmaps.lab import workloads
from qmaps.lab.workloads import Workload, train
from qmaps.storage.files import output_folder, replacing
from reproduction.report_file import write_report

ROWS = (
    ("AdamW", "32bit"), ("Adafactor", "32bit"), ("SM3", "32bit"), ("AdamW", "8bit"),
    ("AdamW", "paper-4bit"), ("AdamWFactor", "paper-4bit"),
)  # fmt: skip
"""Optimizer and width of each row, as `benchmarks.families` names them."""
FACTORS = (1.0, 4.0, 16.0)
"""Rates that are tried first, in units of the family's of `benchmarks.families`."""
LIMITS = (1 / 1024, 1024.0)
HEAD = ("optimizer", "width", "rate", "seeds", "loss", "spread", "rates tried")


def run(workload: Workload, name: str, width: str, seed: int, out: Path) -> dict[str, Any]:
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


def tune(work: str, row: tuple[str, str], seeds: int, runs: Path) -> list[dict[str, Any]]:
    """The runs of one row at all the rates that were tried."""
    name, width = row
    plain = workloads.get(work)
    trials_of: dict[float, list[dict[str, Any]]] = {}

    def loss(factor: float) -> float:
        if factor not in trials_of:
            at_rate = replace(plain, lr=plain.lr * factor)
            trials_of[factor] = [
                run(at_rate, name, width, seed, runs / f"{factor:g}")
                | {"rate": plain.lr * factor * FAMILIES[name].rate}
                for seed in range(seeds)
            ]
            print(f"{work} {name} {width} at {factor:g} times its rate", flush=True)
        mean = sum(each["loss"] for each in trials_of[factor]) / seeds
        return float("inf") if math.isnan(mean) else mean  # no number is less than NaN

    tried = list(FACTORS)
    while True:
        best = min(tried, key=loss)
        if best == min(tried) and best > LIMITS[0]:
            tried.append(best / 4)
        elif best == max(tried) and best < LIMITS[1]:
            tried.append(best * 4)
        elif more := [
            f for f in (best / 2, best * 2) if f not in tried and LIMITS[0] <= f <= LIMITS[1]
        ]:
            tried += more
        else:
            return [each for rows in trials_of.values() for each in rows]


def best(frame: pd.DataFrame) -> pd.DataFrame:
    """The runs of each row at the rate of its lowest mean loss, with `rates`, how many were tried.

    Args:
        frame: the rows of `tune`; a loss that is not a number counts as infinite.
    """
    frame = frame.assign(loss=frame["loss"].fillna(float("inf")))
    parts = []
    for _, rows in frame.groupby(["workload", "optimizer", "width"], sort=False):
        means = rows.groupby("rate")["loss"].mean()
        parts.append(rows[rows["rate"] == means.idxmin()].assign(rates=len(means)))
    return pd.concat(parts, ignore_index=True)


def markdown(frame: pd.DataFrame, command: str) -> str:
    """The best of each row as a page."""
    lines = [
        "# Optimizers at their own best rates",
        "",
        f"`{command}`",
        "",
        f"torch {torch.__version__}, {torch.get_num_threads()} threads. Final validation loss, "
        "mean and standard deviation over seeds, at the rate whose mean is lowest: each row's own. "
        "Rates are powers of two apart near the best one, which lies inside the range tried. The "
        "same seeds choose the rate and give the loss.",
    ]
    for workload, part in best(frame).groupby("workload", sort=False):
        cells = [
            [
                str(name), str(width), f"{rows['rate'].iloc[0]:g}", str(len(rows)),
                f"{rows['loss'].mean():.4f}", f"{rows['loss'].std():.4f}",
                str(rows["rates"].iloc[0]),
            ]
            for (name, width), rows in part.groupby(["optimizer", "width"], sort=False)
        ]  # fmt: skip
        lines += ["", f"## {workload}", "", *table_lines(HEAD, cells)]
    return "\n".join(lines) + "\n"


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuned", description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--runs", type=Path, default=Path("runs/tuned"), help="run folders")
    parser.add_argument("--out", type=Path, default=Path("reports"), help="folder of the results")
    options = parser.parse_args(argv)
    output_folder(options.out)
    runs = [
        each
        for work in ("digits", "stdlib-lm-tiny")
        for row in ROWS
        for each in tune(work, row, options.seeds, options.runs)
    ]
    frame = pd.DataFrame(runs)
    with replacing(options.out / "tuned.csv") as temporary:
        frame.to_csv(temporary, index=False)
    command = command_line("benchmarks.tuned", argv)
    write_report(options.out / "tuned.md", markdown(frame, command))
    return 0


if __name__ == "__main__":
    sys.exit(main())
