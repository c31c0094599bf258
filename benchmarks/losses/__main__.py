"""Final losses of optimizers at tuned rates.

``python -m benchmarks STUDY`` sweeps the rate of every baseline until the best lies inside its
range, trains the rows of the papers' tables at it with eight seeds, goes on where it was stopped,
and writes reports/losses/STUDY.{csv,md}.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks.command import among, command_line, count, one_line_errors, study_options, written
from benchmarks.losses.page import page
from benchmarks.losses.studies import STUDIES
from benchmarks.losses.tune import run
from qmaps.storage.files import output_folder


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = study_options("benchmarks", __doc__, out="reports/losses")
    parser.add_argument("study", nargs="*", default=list(STUDIES), metavar="STUDY",
                        help=f"any of {', '.join(STUDIES)} (default: all)")  # fmt: skip
    parser.add_argument("--workers", type=count, help="processes (default: one per core)")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="trials that are done")
    options = parser.parse_args(argv)
    among(parser, "study", options.study, list(STUDIES))
    output_folder(options.out)
    for name in options.study:
        groups = STUDIES[name]()
        parts = [run(group, options.runs / "trials", options.workers or 0) for group in groups]
        frame = pd.concat(parts, ignore_index=True)
        command = command_line("benchmarks", [name, "--workers", "1"])
        text = page(name, STUDIES[name].__doc__ or "", frame, command)
        written(options.out, name, text, frame)
    return 0


if __name__ == "__main__":
    sys.exit(main())
