"""Test verdicts of `qmaps.recommend` on models that its thresholds have not seen.

``python -m benchmarks.blind tune`` finds the best options of 32-bit AdamW, ``pilot`` the number of
seeds, ``verdicts`` records a run of each judge and asks for verdicts and choices, ``train`` trains
all quantizers, and ``report`` writes reports/blind from the rows that are there; without a command
all are run. Each goes on where it was stopped. Judges that are named run alone.
reports/blind/preregistration.md has the plan.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks.blind import plan, report, tune, verdicts
from benchmarks.blind.equivalence import needed_seeds
from benchmarks.blind.judges import JUDGES, SEEN
from benchmarks.command import among, command_line, count, one_line_errors
from benchmarks.trials import restore, run_all, with_others
from qmaps.errors import BadValueError
from qmaps.storage.files import exists, output_folder, replacing
from reproduction.report_file import write_report

TUNING, PILOT, TRIALS, VERDICTS, STEPS = (
    "tuning.csv",
    "pilot.csv",
    "trials.csv",
    "verdicts.csv",
    "steps.csv",
)


def _tune(judge: str, out: Path, runs: Path, workers: int) -> None:
    restore(out / TUNING, runs / "trials")
    _write(tune.tune(judge, type(JUDGES[judge])(), runs / "trials", workers), out / TUNING)


def _pilot(judge: str, out: Path, runs: Path, workers: int) -> None:
    rows = tune.rows(plan.pilot(judge), runs / "trials", workers)
    _write(rows, out / PILOT)
    spread, seeds = needed_seeds(rows)
    print(f"{judge}: paired differences spread by {spread:.2%} of steps; {seeds} seeds")
    if seeds > plan.MOST_SEEDS:
        print(f"{judge}: that is more than {plan.MOST_SEEDS}; make the model quieter")


def _verdicts(judge: str, out: Path, runs: Path, _: int) -> None:
    _write(verdicts.ask(judge, runs / "blind" / judge, out / "choices" / judge), out / VERDICTS)


def _train(judge: str, out: Path, runs: Path, workers: int) -> None:
    restore(out / TRIALS, runs / "trials")
    choices = out / "choices" / judge
    if not all(exists(choices / plan.slug(name)) for name in plan.choices_of(judge)):
        raise BadValueError(f"judge={judge!r} has no choices in {choices}; run verdicts first")
    trials = plan.trials(judge, choices)
    frame = run_all(trials, runs / "trials", workers=workers)
    _write(plan.described(frame, trials), out / TRIALS)


def _report(out: Path, command: str) -> None:
    trained, told, tuned = (pd.read_csv(out / name) for name in (TRIALS, VERDICTS, TUNING))
    steps = report.judged(trained, told)
    with replacing(out / STEPS) as temporary:
        steps.to_csv(temporary, index=False, float_format="%.9g")  # not rounded twice
    for name, draw in report.PICTURES.items():
        with replacing(out / name) as temporary:
            draw(steps, temporary)
    write_report(out / "README.md", report.page(steps, trained, tuned, command))


STAGES = {"tune": _tune, "pilot": _pilot, "verdicts": _verdicts, "train": _train}
"""What is done for each judge, in this order, before the report."""
COMMANDS = (*STAGES, "report")


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.blind", description=__doc__)
    parser.add_argument("command", nargs="?", choices=COMMANDS, help="(default: all)")
    parser.add_argument("judge", nargs="*", default=list(JUDGES), metavar="JUDGE",
                        help=f"any of {', '.join(JUDGES)} (default: all)")  # fmt: skip
    parser.add_argument("--workers", type=count, help="processes (default: one per core)")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="trials and recordings")
    parser.add_argument("--out", type=Path, default=Path("reports/blind"))
    options = parser.parse_args(argv)
    among(parser, "judge", options.judge, list(JUDGES))
    out = output_folder(options.out)
    commands = (options.command,) if options.command else COMMANDS
    for judge in options.judge:
        for name in STAGES:
            # A judge waits for its number of seeds, unless its training is asked for by name.
            waits = name == "train" and judge not in plan.SIZES and not options.command
            untested = name == "verdicts" and judge in SEEN
            if name in commands and not waits and not untested:
                STAGES[name](judge, out, options.runs, options.workers or 0)
    if "report" in commands:
        _report(out, command_line("benchmarks.blind", argv))
    return 0


def _write(frame: pd.DataFrame, path: Path) -> None:
    """Write the rows of a judge beside those of others."""
    with replacing(path) as temporary:
        with_others(frame, path).to_csv(temporary, index=False)


if __name__ == "__main__":
    sys.exit(main())
