"""The choice of `qmaps.recommend`, trained beside the presets of its size.

``python -m benchmarks.recommended`` records a 32-bit run of each judge with a seed that no trial
has, asks for quantizers of at most 4.3 bits per element, trains the judge with them, goes on where
it was stopped, and writes reports/recommended.{csv,md}.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch

import qmaps
from benchmarks.command import among, command_line, one_line_errors, trial_options
from benchmarks.judges import PAPER
from benchmarks.markdown import markdown
from benchmarks.paired import paired
from benchmarks.prediction.measures import record, snapshots
from benchmarks.trials import FULL, Trial, run_all
from qmaps.optim import Choice
from qmaps.storage.files import exists, output_folder, replacing
from reproduction.judges import JUDGES
from reproduction.report_file import write_report

BITS = 4.3
SEEDS = 8
NAME = "recommended"
SIBLING = "B128/DE@4s+sr + B128/DE-0@4u"
"""The pair of the preset ``4bit``."""
PRESETS = {SIBLING: "4bit", PAPER: "paper-4bit"}
"""Pairs of the same size as the choice, with the presets that have them."""


def choice(judge: str, runs: Path) -> Path:
    """The choice for a judge, from states and gradients of its own 32-bit run.

    Args:
        judge: its name.
        runs: where the recorded run and the choice are kept.
    """
    path = output_folder(runs / "recommended") / f"{judge}.json"
    if not exists(path):
        states = record(judge, output_folder(runs / "prediction" / judge))
        last = snapshots(JUDGES[judge].steps)[-1]
        recommendation = qmaps.recommend(qmaps.capture.load(states, step=last), bits=BITS)
        print(f"{judge}: {recommendation}")
        recommendation.save(path)
    return path


def trials(judge: str, file: Path) -> list[Trial]:
    """Trials on a judge: the choice, the presets of its size, and 32 bits."""
    work = JUDGES[judge]
    return [
        Trial(judge, work, name, seed, str(file) if name == NAME else "")
        for name in (NAME, *PRESETS, FULL)
        for seed in range(SEEDS)
    ]


def differences(frame: pd.DataFrame) -> pd.DataFrame:
    """Losses minus those of others with the same seed.

    Args:
        frame: rows of `run_all`.

    Returns:
        `judge`, `one`, `other`, `seeds`, `difference` (mean), `low` and `high` (95 % confidence
        interval): the choice and each preset minus 32 bits, and the choice minus each preset.
    """
    table = frame.pivot_table("loss", ["judge", "seed"], "quantizer", sort=False)
    compared = [(name, FULL) for name in (NAME, *PRESETS)] + [(NAME, pair) for pair in PRESETS]
    records = []
    for judge, losses in table.groupby(level="judge", sort=False):
        for one, other in compared:
            difference = paired(losses[one], losses[other])
            records.append({"judge": judge, "one": one, "other": other, **difference})
    return pd.DataFrame(records)


def page(frame: pd.DataFrame, choices: dict[str, Path], command: str) -> str:
    """The report."""
    lines = [
        "# The recommended quantizers, trained",
        "",
        f"`{command}`",
        "",
        f"torch {torch.__version__}, one thread for each run. For each judge "
        "([judges.md](judges.md)) `qmaps.recommend` got the states of a 32-bit run in its last "
        f"quarter, with the gradients after them, and chose quantizers of at most {BITS} bits per "
        "element. The run's seed is none of the seeds below. Differences of the final validation "
        "loss are taken seed by seed; 95 % is the confidence interval of a t-test.",
        "",
    ]
    titles = {**PRESETS, NAME: NAME, FULL: "32 bits"}
    compared = differences(frame)
    lines += markdown(
        ("judge", "seeds", "", "minus", "difference", "95 %"),
        [
            (
                row.judge,
                str(row.seeds),
                titles[row.one],
                titles[row.other],
                f"{row.difference:+.4f}",
                f"{row.low:+.4f} to {row.high:+.4f}",
            )
            for row in compared.itertuples()
        ],
    )
    lines += ["", "## What was chosen", ""]
    for judge, file in choices.items():
        lines += [f"{judge}:", "", "```python", Choice.load(file).code, "```", ""]
    return "\n".join(lines)


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recommended", description=__doc__)
    parser.add_argument("judge", nargs="*", default=list(JUDGES), metavar="JUDGE",
                        help=f"any of {', '.join(JUDGES)} (default: all)")  # fmt: skip
    trial_options(parser)
    options = parser.parse_args(argv)
    among(parser, "judge", options.judge, list(JUDGES))
    out = output_folder(options.out)
    choices = {judge: choice(judge, options.runs) for judge in options.judge}
    due = [trial for judge, file in choices.items() for trial in trials(judge, file)]
    frame = run_all(due, options.runs / "trials", workers=options.workers or 0)
    with replacing(out / "recommended.csv") as temporary:
        frame.to_csv(temporary, index=False)
    command = command_line("benchmarks.recommended", argv)
    write_report(out / "recommended.md", page(frame, choices, command))
    return 0


if __name__ == "__main__":
    sys.exit(main())
