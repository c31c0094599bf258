"""Final losses of the papers' optimizers at tuned rates.

``python -m benchmarks.losses`` sweeps the rate of every baseline until the best lies inside its
range, trains the rows of the papers' tables at it with eight seeds, goes on where it was stopped,
and writes reports/losses/STUDY.{csv,md}.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import pandas as pd

from benchmarks.command import among, command_line, one_line_errors, trial_options
from benchmarks.losses.page import page
from benchmarks.losses.studies import STUDIES
from benchmarks.losses.tune import run
from qmaps.storage.files import output_folder, replacing
from reproduction.report_file import write_report


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.losses", description=__doc__)
    parser.add_argument("study", nargs="*", default=list(STUDIES), metavar="STUDY",
                        help=f"any of {', '.join(STUDIES)} (default: all)")  # fmt: skip
    trial_options(parser)
    options = parser.parse_args(argv)
    among(parser, "study", options.study, list(STUDIES))
    out = output_folder(options.out / "losses")
    for name in options.study:
        groups = STUDIES[name]()
        parts = [run(group, options.runs / "trials", options.workers or 0) for group in groups]
        frame = pd.concat(parts, ignore_index=True)
        with replacing(out / f"{name}.csv") as temporary:
            frame.to_csv(temporary, index=False)
        command = command_line("benchmarks.losses", [name, "--workers", "1"])
        write_report(out / f"{name}.md", page(name, STUDIES[name].__doc__ or "", frame, command))
    return 0


if __name__ == "__main__":
    sys.exit(main())
