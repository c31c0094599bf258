"""Run the experiment of reports/prediction: ``python -m benchmarks.prediction``.

It trains the parts, records and measures one run of each judge, goes on where it was stopped, and
writes reports/prediction/{trials,measures,scores}.csv, results.md and one picture. Parts that are
named run alone; the report is made of the seeds that have been finished, and, where no run is kept,
of the rows in the files that are there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.command import among, command_line, count, one_line_errors
from benchmarks.prediction import measures, report
from benchmarks.prediction.plan import PARTS, pairs
from benchmarks.trials import kept, run_all
from qmaps.storage.files import output_folder, read_frame, replacing, write_frame
from reproduction.report_file import write_report

TRIALS, MEASURES = "trials.csv", "measures.csv"


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prediction", description=__doc__)
    parser.add_argument("part", nargs="*", default=list(PARTS), metavar="PART",
                        help=f"any of {', '.join(PARTS)} (default: all)")  # fmt: skip
    parser.add_argument("--workers", type=count, help="processes (default: one per core)")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="trials and recordings")
    parser.add_argument("--out", type=Path, default=Path("reports/prediction"))
    options = parser.parse_args(argv)
    among(parser, "part", options.part, list(PARTS))
    out = output_folder(options.out)
    for name in options.part:
        part = PARTS[name]
        run_all(part.trials(), options.runs / "trials", workers=options.workers or 0)
        measured(part.judge, options.runs / "prediction")
    trials, found = finished(options.runs, out)
    with replacing(out / TRIALS) as temporary:
        trials.to_csv(temporary, index=False)
    with replacing(out / MEASURES) as temporary:
        found.to_csv(temporary, index=False)
    scores = report.scores(trials, found)
    with replacing(out / "scores.csv") as temporary:
        scores.to_csv(temporary, index=False)
    with replacing(out / "prediction.png") as temporary:
        report.draw(trials, found, temporary)
    command = command_line("benchmarks.prediction", argv)
    write_report(
        out / "results.md", report.page(scores, trials, report.verdicts(trials, found), command)
    )
    return 0


def measured(judge: str, folder: Path) -> pd.DataFrame:
    """The measures of all pairs on a judge, from the file if they are there already."""
    path = folder / f"{judge}.parquet"
    if path.exists():
        return read_frame(path)
    states = measures.record(judge, output_folder(folder / judge))
    most = max(part.pairs for part in PARTS.values() if part.judge == judge)
    frame = measures.measured(states, pairs()[:most])
    write_frame(path, frame)
    return frame


def finished(runs: Path, out: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Trials and measures, with the column `part` or `judge`.

    Of a part that was stopped, the seeds are taken that all of its pairs have. What no run is kept
    of is taken from the files in `out`, which an earlier call wrote.
    """
    trials, found = {}, {}
    for name, part in PARTS.items():
        path = runs / "prediction" / f"{part.judge}.parquet"
        if not path.exists():  # a part's keys need its packages, which may be absent
            continue
        seeds: dict[int, list[dict[str, Any] | None]] = {}
        for trial in part.trials():
            seeds.setdefault(trial.seed, []).append(kept(runs / "trials", trial))
        rows = [
            row
            for rows_of_seeds in seeds.values()
            if None not in rows_of_seeds
            for row in rows_of_seeds
        ]
        if rows:
            trials[name] = pd.DataFrame(rows).assign(part=name)
            found[part.judge] = read_frame(path).assign(judge=part.judge)
    for file, frames, key in ((TRIALS, trials, "part"), (MEASURES, found, "judge")):
        if (out / file).exists():
            for name, rows in pd.read_csv(out / file).groupby(key, sort=False):
                frames.setdefault(name, rows)
    parts = [trials[name] for name in PARTS if name in trials]
    judges = dict.fromkeys(part.judge for part in PARTS.values())
    known = [found[judge] for judge in judges if judge in found]
    return pd.concat(parts, ignore_index=True), pd.concat(known, ignore_index=True)


if __name__ == "__main__":
    sys.exit(main())
