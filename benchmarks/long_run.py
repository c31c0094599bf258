"""Presets in a training of 10,000 steps from random weights, ten decays of second moments.

``python -m benchmarks.long_run tune`` finds the best options of 32-bit AdamW, ``train`` trains the
presets at them, and ``report`` writes reports/long-run.md from the rows in reports/long-run.csv and
long-run-tuning.csv; without a command all three are done. It goes on where it was stopped.

The plan, written before the runs: the workload `lm-tiny` with 64 batches of validation; learning
rate, beta1 and weight decay of 32 bits by `benchmarks.blind.tune`; 32 bits and `SHOWN` with the
seeds 0 to 7, and 32 bits of 0.7 and 1.4 times the length with two seeds; differences in steps and
their tests as in reports/blind/preregistration.md, at the same margin of 2 per cent of steps.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy import stats

from benchmarks.blind import tune
from benchmarks.blind.equivalence import in_steps, percent
from benchmarks.blind.plan import CURVE_SEEDS, MARGIN, other_lengths
from benchmarks.command import command_line, count, one_line_errors
from benchmarks.markdown import markdown
from benchmarks.trials import FULL, Trial, restore, run_all
from benchmarks.version_0_3 import PAIR_OF
from qmaps.errors import BadValueError
from qmaps.lab.workloads import Workload
from qmaps.storage.files import exists, output_folder, records, replacing
from reproduction.judges import JUDGES
from reproduction.report_file import write_report

JUDGE = "lm-tiny"
WORKLOAD: Workload = replace(JUDGES[JUDGE], steps=10_000, validation_batches=64)  # type: ignore[call-arg]
SHOWN = ("8bit", "4bit", "3bit")
"""Presets that are trained."""
SEEDS = 8
TUNING, TRIALS = "long-run-tuning.csv", "long-run.csv"
COMMANDS = ("tune", "train", "report")


def tuned(frame: pd.DataFrame) -> Workload:
    """The workload at the options that are best in rows of `tune`."""
    best = tune.options(frame)[JUDGE]
    betas = (best["beta1"], WORKLOAD.betas[1])
    return replace(WORKLOAD, lr=best["lr"], betas=betas, weight_decay=best["weight_decay"])


def trials(work: Workload) -> list[Trial]:
    """All trainings, seeds outermost."""
    pairs = (FULL, *(PAIR_OF[name] for name in SHOWN))
    whole = [Trial(JUDGE, work, pair, seed) for seed in range(SEEDS) for pair in pairs]
    return [*other_lengths(JUDGE, work, CURVE_SEEDS), *whole]


def compared(frame: pd.DataFrame, work: Workload) -> pd.DataFrame:
    """Rows of `benchmarks.blind.equivalence.in_steps` of the runs of `work`."""
    return in_steps(frame.assign(factor=1.0, length=(frame["steps"] / work.steps).round(9)))


def with_slope(apart: pd.Series, fall: float, error: float) -> str:
    """The 95 % interval in per cent of steps, with the standard error of the slope in it.

    Args:
        apart: differences from 32 bits in nats, one for each seed.
        fall: the fall of the loss per unit of log steps.
        error: its standard error.
    """
    mean = apart.mean() / fall
    half = stats.t.ppf(0.975, len(apart) - 1) * np.hypot(apart.sem(), mean * error) / fall
    return f"{100 * np.expm1(mean - half):+.1f} to {100 * np.expm1(mean + half):+.1f}"


def page(frame: pd.DataFrame, tuning: pd.DataFrame, command: str) -> str:
    """The report.

    Args:
        frame: rows of `trials`.
        tuning: rows of `benchmarks.blind.tune.tune`.
        command: that made it.
    """
    work = tuned(tuning)
    steps = compared(frame, work)
    by_pair = {row["quantizer"]: row for row in records(steps)}
    rows = [(name, by_pair[PAIR_OF[name]]) for name in SHOWN]
    whole = frame[frame["steps"] == work.steps]
    losses = whole.pivot_table("loss", "seed", "quantizer")
    full, (fall, error) = losses[FULL], steps[["slope", "slope_error"]].iloc[0]
    apart = {name: losses[PAIR_OF[name]] - full for name in SHOWN}
    medians = {name: 100 * np.expm1(apart[name].median() / fall) for name in SHOWN}
    lengths = frame["steps"] / work.steps
    most = 1 / lengths.min() - 1
    beyond = ", ".join(f"`{name}`" for name, row in rows if row["steps"] > most)
    last = int(full.idxmax())
    return "\n".join(
        [
            f"# Presets after {work.steps:,} steps",
            "",
            *(
                f"`{name}`: slower by {percent(row)} per cent of steps, {row['outcome']}."
                for name, row in rows
            ),
            "",
            f"`{command}`; torch {torch.__version__}, one thread for each run.",
            "",
            f"`{JUDGE}` is trained from random weights with {work.steps:,} steps, ten times "
            f"1 / (1 - beta2), at the options that are best for 32 bits: rate {work.lr:g}, beta1 "
            f"{work.betas[0]:g} and weight decay {work.weight_decay:g}. Its loss ends at "
            f"{full.mean():.4f} {work.unit} in 32 bits. Differences are means over {SEEDS} seeds "
            "with 95 % intervals, in steps as in the [blind test](blind/preregistration.md), at "
            f"its margin of {MARGIN:.0%}. The plan was committed before the runs "
            "(`benchmarks/long_run.py`).",
            "",
            *markdown(
                (
                    *("preset", "quantizers", "minus 32 bits, nats", "slower by, %", "outcome"),
                    *("with the slope's error, %", "median, nats", "slower by the median, %"),
                ),
                [
                    (
                        f"`{name}`",
                        f"`{PAIR_OF[name]}`",
                        f"{row['nats']:+.4f}",
                        percent(row),
                        row["outcome"],
                        with_slope(apart[name], fall, error),
                        f"{apart[name].median():+.4f}",
                        f"{medians[name]:+.1f}",
                    )
                    for name, row in rows
                ],
            ),
            "",
            f"Nats become steps by the slope of the loss over log steps, {fall:.4f} with a "
            f"standard error of {error / fall:.0%}, which the planned intervals leave out; another "
            f"column has it. Lengths of {lengths.min():g} to {lengths.max():g} times were trained, "
            f"so that numbers above {100 * most:+.1f} %"
            + (f", those of {beyond}," if beyond else "")
            + " lie beyond what was measured. Medians are beside means because single runs of 32 "
            f"bits move the means: seed {last} ends at {full[last]:.4f}, half of the seeds up to "
            f"{full.median():.4f}.",
            "",
            "## Tuning of 32 bits",
            "",
            *markdown(("rate", "beta1", "weight decay", "seeds", "loss"), tuning_rows(tuning)),
            "",
        ]
    )


def tuning_rows(tuning: pd.DataFrame) -> list[tuple[str, ...]]:
    """Options, seeds and mean loss of the runs in 32 bits."""
    return [
        (*(f"{option:g}" for option in options), str(len(losses)), f"{losses.mean():.4f}")
        for options, losses in tuning.groupby(list(tune.OPTIONS))["loss"]
    ]


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_run", description=__doc__)
    parser.add_argument("command", nargs="?", choices=COMMANDS, help="(default: all)")
    parser.add_argument("--workers", type=count, help="processes (default: one per core)")
    parser.add_argument("--runs", type=Path, default=Path("runs/trials"), help="finished trials")
    parser.add_argument("--out", type=Path, default=Path("reports"))
    options = parser.parse_args(argv)
    out, workers = output_folder(options.out), options.workers or 0
    commands = (options.command,) if options.command else COMMANDS
    for name in (TUNING, TRIALS):
        restore(out / name, options.runs)
    if "tune" in commands:
        _write(tune.tune(JUDGE, WORKLOAD, options.runs, workers), out / TUNING)
    for command, needed in (("train", TUNING), ("report", TRIALS)):
        if command in commands and len(commands) == 1 and not exists(out / needed):
            raise BadValueError(f"command={command!r} needs {out / needed}; run those before it")
    if "train" in commands:
        plan = trials(tuned(pd.read_csv(out / TUNING)))
        frame = run_all(plan, options.runs, workers=workers)
        _write(frame.assign(key=[trial.key for trial in plan]), out / TRIALS)
    if "report" in commands:
        frame, tuning = (pd.read_csv(out / name) for name in (TRIALS, TUNING))
        text = page(frame, tuning, command_line("benchmarks.long_run", argv))
        write_report(out / "long-run.md", text)
    return 0


def _write(frame: pd.DataFrame, path: Path) -> None:
    with replacing(path) as temporary:
        frame.to_csv(temporary, index=False)


if __name__ == "__main__":
    sys.exit(main())
