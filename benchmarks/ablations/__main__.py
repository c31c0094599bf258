"""Ablations of the 8-bit and of the 4-bit paper.

``python -m benchmarks.ablations`` trains every setting of both tables, and the linear maps
with larger eps, goes on where it was stopped, and writes
reports/ablations/{eight-bit,eight-bit-eps,four-bit}.{csv,md,png}.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from benchmarks.ablations import eight_bit, eight_bit_eps, four_bit
from benchmarks.ablations.page import page
from benchmarks.ablations.stability import stability
from benchmarks.ablations.study import Study, run
from benchmarks.command import command_line, one_line_errors
from qmaps import figures
from qmaps.storage.files import output_folder, replacing
from reproduction.report_file import write_report

STUDIES = {study.name: study for study in (eight_bit.STUDY, eight_bit_eps.STUDY, four_bit.STUDY)}


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ablations", description=__doc__)
    parser.add_argument("study", nargs="*", metavar="STUDY", help=f"of {', '.join(STUDIES)}")
    parser.add_argument("--steps", type=int, help="of each run (default: the workload's)")
    parser.add_argument("--points", type=int, help="take the first ones only")
    parser.add_argument("--runs", type=Path, default=Path("runs/ablations"), help="run folders")
    parser.add_argument("--out", type=Path, default=Path("reports/ablations"))
    options = parser.parse_args(argv)
    if unknown := [name for name in options.study if name not in STUDIES]:
        parser.error(f"STUDY={unknown[0]!r} is none of {', '.join(STUDIES)}")
    command = command_line("benchmarks.ablations", argv)
    output_folder(options.out)
    for name in options.study or STUDIES:
        study = replace(STUDIES[name], points=STUDIES[name].points[: options.points])
        write(study, frame_of(study, options.steps, options.runs), command, options.out)
    return 0


def frame_of(study: Study, steps: int | None, runs: Path) -> pd.DataFrame:
    """The rows of all runs."""
    rows = []
    total = len(study.settings) * len(study.points)
    for setting in study.settings:
        for point in study.points:
            row = run(study, setting, point, steps, runs)
            rows.append(row)
            ends = "unstable" if row["unstable"] else f"{row['loss']:.4f}"
            print(f"{len(rows)}/{total} {setting.name} {point.name}: {ends}", flush=True)
    return pd.DataFrame(rows)


def write(study: Study, frame: pd.DataFrame, command: str, out: Path) -> None:
    """Frame, page and picture."""
    with replacing(out / f"{study.name}.csv") as temporary:
        frame.to_csv(temporary, index=False)
    write_report(out / f"{study.name}.md", page(study, frame, command))
    figure = stability(frame, unit="nats per byte", label=" | ".join(study.columns))
    figures.save(figure, out / f"{study.name}.png")


if __name__ == "__main__":
    sys.exit(main())
