"""Steps that a step cost of `qmaps.replay` stands for, on models with trials of many pairs.

``python -m benchmarks.prediction.steps`` compares the trials in reports/prediction with their
replays, in the unit of `benchmarks.blind.equivalence`, and writes reports/prediction/steps.md and
calibration.png.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.blind.equivalence import MAX_SLOPE_ERROR, calibrated
from benchmarks.blind.plan import MARGIN
from benchmarks.judges import JUDGED, LENGTHS, REPORTS, slower
from benchmarks.markdown import markdown
from benchmarks.prediction.plan import PARTS
from benchmarks.prediction.report import of_pairs, parts
from qmaps.analyze.recommend.verdict import SAFE, cost_of, dangerous
from qmaps.storage.files import records, replacing
from reproduction.report_file import write_report

MOST = 0.3
"""Step cost above which a pair is left out."""


def points(trials: pd.DataFrame, measures: pd.DataFrame, slopes: pd.DataFrame) -> pd.DataFrame:
    """Pairs at the tuned rates, without zero points and very large updates.

    Args:
        trials: rows of reports/prediction/trials.csv.
        measures: rows of reports/prediction/measures.csv.
        slopes: `judge`, `slope` and `slope_error` of `benchmarks.judges.slower`.

    Returns:
        `judge`, `quantizer`, `cost` (the step cost), and `slower` (the mean difference of the
        final loss from 32 bits, in units of log steps). Judges whose slope is not known are left
        out.
    """
    known = slopes[slopes["slope_error"] <= MAX_SLOPE_ERROR * slopes["slope"]]
    falls = dict(zip(known["judge"], known["slope"], strict=True))
    rows = []
    for part, rate, difference in parts(trials):
        judge = PARTS[part].judge
        if rate != 1 or judge not in falls:
            continue
        own = of_pairs(measures, part, difference.index).filter(like="replay_")
        replays = records(own.rename(columns=lambda name: name.removeprefix("replay_")))
        losses = difference.mean(axis=1) / falls[judge]
        for (quantizer, lost), row in zip(losses.items(), replays, strict=True):
            if not dangerous(row) and cost_of(row) <= MOST and np.isfinite(lost):
                rows.append((judge, quantizer, cost_of(row), lost))
    return pd.DataFrame(rows, columns=["judge", "quantizer", "cost", "slower"])


def within(pairs: pd.DataFrame) -> pd.DataFrame:
    """Pairs up to the step cost of the verdict safe: how many end within the margin, by judge."""
    safe = pairs[pairs["cost"] <= SAFE]
    ended = (np.expm1(safe["slower"]) <= MARGIN).groupby(safe["judge"], sort=False)
    return pd.DataFrame({"pairs": ended.count(), "within": ended.sum()}).reset_index()


def page(pairs: pd.DataFrame, command: str) -> str:
    """The report on rows of `points`."""
    counts = within(pairs).set_index("judge")
    lines = [
        "# Steps that a step cost stands for",
        "",
        f"`{command}`",
        "",
        "A step cost of 0.05 says that replayed steps make 5 % less progress. If trainings were "
        "slower by as many steps, slopes would be 1. Here are the pairs of "
        f"[results.md](results.md) at the tuned rates with step costs of up to {MOST}, without "
        "zero points and very large updates. Steps are those of [judges.md](../judges.md).",
        "",
        "![per cent of steps against step cost](calibration.png)",
        "",
        *markdown(
            ("model", "pairs", "slope", "slope of the other models", "median error by that slope",
             f"step cost up to {SAFE}", f"of these within {MARGIN:.0%} of steps"),
            [
                (
                    row["judge"],
                    str(row["pairs"]),
                    f"{row['slope']:.2f}",
                    f"{row['slope_of_others']:.2f}",
                    f"{row['median_error']:.1%}",
                    str(counts["pairs"].get(row["judge"], 0)),
                    str(counts["within"].get(row["judge"], 0)),
                )
                for row in records(calibrated(pairs))
            ],
        ),
        "",
        f"Together {counts['within'].sum()} of {counts['pairs'].sum()} pairs of a step cost of up "
        f"to {SAFE} end within {MARGIN:.0%} of steps, by their mean over seeds; the seeds' noise "
        "counts against them.",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def draw(pairs: pd.DataFrame, path: Path) -> None:
    """Write a PNG of the pairs, one color a model, with the margin as a band."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    for judge, own in pairs.groupby("judge", sort=False):
        panel.plot(own["cost"], 100 * np.expm1(own["slower"]), "o", alpha=0.6, label=judge)
    panel.axhspan(-100 * MARGIN, 100 * MARGIN, color="tab:green", alpha=0.15)
    costs = np.geomspace(1e-4, MOST)
    panel.plot(costs, 100 * costs, color="#9498a0", linewidth=1, label="slope 1")
    panel.axvline(SAFE, color="#9498a0", linewidth=1, linestyle="--")
    panel.set(xscale="log", xlabel="step cost", ylabel="slower by, % of steps")
    panel.set_xlim(1e-4, MOST)
    panel.set_yscale("symlog", linthresh=5)
    panel.legend()
    figure.savefig(path, format="png", dpi=120)


def main() -> int:
    """Write the report."""
    folder = REPORTS / "prediction"
    pairs = points(
        pd.read_csv(folder / "trials.csv"),
        pd.read_csv(folder / "measures.csv"),
        slower(pd.read_csv(JUDGED), pd.read_csv(LENGTHS)).drop_duplicates("judge"),
    )
    with replacing(folder / "calibration.png") as temporary:
        draw(pairs, temporary)
    write_report(folder / "steps.md", page(pairs, "python -m benchmarks.prediction.steps"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
