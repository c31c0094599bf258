"""Steps that a step cost of `qmaps.replay` stands for, on models with trials of many pairs.

``python -m benchmarks.prediction.steps`` compares the trials in reports/prediction and those in
reports/blind with their replays, in the unit of `benchmarks.blind.equivalence`, and writes
reports/prediction/steps.md and calibration.png.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.blind.equivalence import MAX_SLOPE_ERROR, of_known_slope
from benchmarks.blind.plan import MARGIN, PAIRS, SAFE_SHARE
from benchmarks.judges import JUDGED, LENGTHS, REPORTS, slower
from benchmarks.markdown import markdown
from benchmarks.prediction.plan import PARTS
from benchmarks.prediction.report import BASE, of_pairs, parts
from qmaps.analyze.recommend.verdict import (
    CLEAN,
    HARMLESS,
    LEVELS,
    UNPROVEN,
    UNSAFE,
    cost_of,
    dangerous,
    level,
)
from qmaps.storage.files import records, replacing
from reproduction.report_file import write_report

FOLDER = REPORTS / "prediction"
MOST = 0.3
"""Step cost above which a pair is left out."""
EDGES = (0.0, CLEAN, UNPROVEN, UNSAFE, MOST)


def points(trials: pd.DataFrame, measures: pd.DataFrame, slopes: pd.DataFrame) -> pd.DataFrame:
    """Pairs at the tuned rates.

    Args:
        trials: rows of reports/prediction/trials.csv.
        measures: rows of reports/prediction/measures.csv.
        slopes: `judge`, `slope` and `slope_error` of `benchmarks.judges.slower`.

    Returns:
        `judge`, `quantizer`, `verdict`, `cost` (the step cost; NaN with zero points or very large
        updates), and `slower` (the mean difference of the final loss from 32 bits, in units of log
        steps; infinite where a run diverged). Judges whose slope is not known are left out.
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
        losses = difference.mean(axis=1, skipna=False).fillna(np.inf) / falls[judge]
        for (quantizer, lost), row in zip(losses.items(), replays, strict=True):
            cost = np.nan if dangerous(row) else cost_of(row)
            rows.append((judge, quantizer, level(row), cost, lost))
    return pd.DataFrame(rows, columns=["judge", "quantizer", "verdict", "cost", "slower"])


def blind(steps: pd.DataFrame, told: pd.DataFrame) -> pd.DataFrame:
    """Rows as of `points` of the blind test, at the tuned rates, of judges whose slope is known.

    Args:
        steps: rows of reports/blind/steps.csv.
        told: rows of reports/blind/verdicts.csv.
    """
    told = told[told["mode"] == "gradients"].assign(cost=1.0)  # every pair has updates
    own = of_known_slope(steps[(steps["factor"] == 1) & steps["quantizer"].isin(PAIRS)])
    both = told.merge(own[["judge", "quantizer", "steps"]], on=["judge", "quantizer"])
    rows = records(both)
    return pd.DataFrame(
        {
            "judge": both["judge"],
            "quantizer": both["quantizer"],
            "verdict": [level(row) for row in rows],
            "cost": [np.nan if dangerous(row) else cost_of(row) for row in rows],
            "slower": np.log1p(both["steps"]),
        }
    )


def bounds(pairs: pd.DataFrame) -> pd.DataFrame:
    """The bound of "clean" from all judges but one, and how that one's pairs below it ended.

    Returns:
        `judge`, `bound` (the largest step cost of which at least `SAFE_SHARE` of the pairs of the
        other judges up to it were at most the margin slower), and `pairs` and `kept_up` of the
        judge, up to it.
    """
    harmless = pairs[pairs["verdict"].isin(HARMLESS)].sort_values("cost")
    ended_well = harmless["slower"] <= np.log1p(MARGIN)
    rows = []
    for judge in pairs["judge"].unique():
        own = harmless["judge"] == judge
        costs = harmless.loc[~own, "cost"]
        shares = ended_well[~own].expanding().mean()
        bound = costs[shares >= SAFE_SHARE].max()
        below = ended_well[own & (harmless["cost"] <= bound)]
        rows.append((judge, bound, len(below), int(below.sum())))
    return pd.DataFrame(rows, columns=["judge", "bound", "pairs", "kept_up"])


def ended(pairs: pd.DataFrame) -> pd.DataFrame:
    """Number of pairs by judge and verdict, and how they ended.

    Returns:
        `judge`, `verdict`, `pairs`; `kept_up`, those at most the margin slower than 32 bits, by the
        mean over seeds; and `within`, those that are not faster by more than it either.
    """
    margin = np.log1p(MARGIN)
    by = [pairs["judge"], pairs["verdict"]]
    kept_up = (pairs["slower"] <= margin).groupby(by, sort=False)
    within = (pairs["slower"].abs() <= margin).groupby(by, sort=False)
    counts = {"pairs": kept_up.count(), "kept_up": kept_up.sum(), "within": within.sum()}
    return pd.DataFrame(counts).reset_index()


def binned(pairs: pd.DataFrame) -> pd.DataFrame:
    """Slower steps of pairs whose step costs are between two of `EDGES`, by judge.

    Returns:
        `judge`, `low` and `high` (step costs), `pairs`, and the `median` and the quartiles `lower`
        and `upper` of the share of steps.
    """
    bins = pd.cut(pairs["cost"], EDGES, include_lowest=True)
    rows = []
    for (judge, costs), own in pairs.groupby(["judge", bins], sort=False, observed=True):
        lower, median, upper = np.expm1(np.quantile(own["slower"], [0.25, 0.5, 0.75]))
        low, high = max(costs.left, 0.0), costs.right
        rows.append((judge, low, high, len(own), median, lower, upper))
    columns = ["judge", "low", "high", "pairs", "median", "lower", "upper"]
    return pd.DataFrame(rows, columns=columns).sort_values(["judge", "low"], ignore_index=True)


def page(pairs: pd.DataFrame, command: str) -> str:
    """The report on rows of `points`."""
    counts = ended(pairs)
    table = {(row["judge"], row["verdict"]): row for row in records(counts)}
    judges = list(pairs["judge"].unique())
    totals = records(counts.groupby("verdict")[["pairs", "kept_up", "within"]].sum().reset_index())
    table |= {("all", row["verdict"]): row for row in totals}
    levels = [name for name in LEVELS if name in set(pairs["verdict"])]
    lines = [
        "# Steps that a step cost stands for",
        "",
        f"`{command}`",
        "",
        "Here are the pairs of [results.md](results.md), and those of the [blind "
        "test](../blind/README.md) with recorded gradients, at the tuned rates, in the steps of "
        "[judges.md](../judges.md): a difference of the final loss, divided by the slope of the "
        "loss over log steps.",
        "",
        "![per cent of steps against step cost](calibration.png)",
        "",
        "## Verdicts",
        "",
        "Each pair was replayed over a whole recorded run, in the blind test over the second half "
        "of one, and has the verdict of that replay, without the checks of single parameters that "
        "`qmaps.recommend` adds and for any step. The first number "
        f"of a cell are the pairs that ended at most {MARGIN:.0%} slower than 32 bits by their "
        f"mean over seeds, the number in brackets those that were not more than {MARGIN:.0%} "
        "faster either. The noise of the seeds counts against them. The thresholds of caution and "
        f"unsafe were chosen on `{PARTS[BASE].judge}`, that of clean on all these models.",
        "",
        *markdown(
            ("model", *levels),
            [
                (judge, *("{kept_up} ({within}) of {pairs}".format(**table[judge, name])
                          if (judge, name) in table else "" for name in levels))
                for judge in (*judges, "all")
            ],
        ),
        "",
        f"Without one of the models, the bound of clean would be the largest step cost up to which "
        f"{SAFE_SHARE:.0%} of the other models' pairs ended at most {MARGIN:.0%} slower. The pairs "
        "of the model that was left out, up to this bound:",
        "",
        *markdown(
            ("left out", "bound of the others", f"at most {MARGIN:.0%} slower"),
            [
                (row["judge"], f"{row['bound']:.2g}", f"{row['kept_up']} of {row['pairs']}")
                for row in records(bounds(pairs))
            ],
        ),
        "",
        "So a new model can be less tolerant than all before it.",
        "",
        "## Step costs",
        "",
        "Per cent of steps by which trainings were slower, the median and the quartiles over "
        "pairs. A step cost of 0.05 says that replayed steps make 5 % less progress. Trainings "
        "are not slower in proportion: on the two models that begin with random weights most pairs "
        "of a step cost below 0.1 end faster than 32 bits, on `microbiome` those from 0.001 to "
        "0.03 end slower by more than it says. Pairs with zero points or very large updates are "
        "left out.",
        "",
        *markdown(
            ("model", "step cost", "pairs", "median", "quartiles"),
            [
                (
                    row["judge"],
                    f"{row['low']:g} to {row['high']:g}",
                    str(row["pairs"]),
                    f"{row['median']:+.1%}",
                    f"{row['lower']:+.1%} to {row['upper']:+.1%}",
                )
                for row in records(binned(_calm(pairs)))
            ],
        ),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _calm(pairs: pd.DataFrame) -> pd.DataFrame:
    return pairs[(pairs["cost"] <= MOST) & np.isfinite(pairs["slower"])]


def draw(pairs: pd.DataFrame, path: Path) -> None:
    """Write a PNG of the pairs, one color a model, with the margin as a band."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    for judge, own in _calm(pairs).groupby("judge", sort=False):
        panel.plot(own["cost"], 100 * np.expm1(own["slower"]), "o", alpha=0.6, label=judge)
    panel.axhspan(-100 * MARGIN, 100 * MARGIN, color="tab:green", alpha=0.15)
    costs = np.geomspace(1e-5, MOST)
    panel.plot(costs, 100 * costs, color="#9498a0", linewidth=1, label="slope 1")
    panel.axvline(CLEAN, color="#9498a0", linewidth=1, linestyle="--")
    panel.set(xscale="log", xlabel="step cost", ylabel="slower by, % of steps")
    panel.set_xlim(1e-5, MOST)
    panel.set_yscale("symlog", linthresh=5)
    figure.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.savefig(path, format="png", dpi=120)


def committed() -> pd.DataFrame:
    """`points` of the committed reports."""
    seen = points(
        *(pd.read_csv(FOLDER / name) for name in ("trials.csv", "measures.csv")),
        slower(pd.read_csv(JUDGED), pd.read_csv(LENGTHS)).drop_duplicates("judge"),
    )
    tables = (pd.read_csv(REPORTS / "blind" / name) for name in ("steps.csv", "verdicts.csv"))
    return pd.concat([seen, blind(*tables)], ignore_index=True)


def main() -> int:
    """Write the report."""
    pairs = committed()
    with replacing(FOLDER / "calibration.png") as temporary:
        draw(pairs, temporary)
    write_report(FOLDER / "steps.md", page(pairs, "python -m benchmarks.prediction.steps"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
