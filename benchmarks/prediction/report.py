"""The experiment's report: a table of correlations and a picture of every part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.markdown import markdown
from benchmarks.prediction import scores as rank
from benchmarks.prediction.plan import PARTS
from benchmarks.prediction.scores import CHOSEN, FITTED, FITTED_STEP, NET, ONE_STEP, Fitted
from qmaps.analyze.recommend import verdict
from reproduction.judges import JUDGES

BASE = "small"
LEAST = 5
"""Fewer pairs have no correlation worth telling."""


def parts(trials: pd.DataFrame) -> Iterator[tuple[str, float, pd.DataFrame]]:
    """Part, rate in units of the tuned one, and outcomes by pair (rows) and seed (columns)."""
    for name, own in trials.groupby("part", sort=False):
        difference = rank.outcomes(own)
        for rate in difference.index.unique("lr"):
            yield str(name), rate / JUDGES[PARTS[name].judge].lr, difference.xs(rate, level="lr")


def of_pairs(measures: pd.DataFrame, part: str, quantizers: pd.Index) -> pd.DataFrame:
    """The rows of the part's judge for these pairs, in their order."""
    own = measures[measures["judge"] == PARTS[part].judge].set_index("quantizer")
    return own.loc[quantizers].reset_index()


def predictions(
    trials: pd.DataFrame, measures: pd.DataFrame
) -> Iterator[tuple[str, float, pd.DataFrame, pd.DataFrame]]:
    """Part, rate, outcomes, and one column for each predictor, the rows in the same order."""
    base = next(found for name, rate, found in parts(trials) if name == BASE and rate == 1)
    own = of_pairs(measures, BASE, base.index)
    cost = base.mean(axis=1)
    fitted = {
        FITTED: Fitted.of(own, "replay_", cost),
        FITTED_STEP: Fitted.of(own, "step_", cost),
    }
    singles = [name for name in own.columns if name.startswith("step_") and "bits" not in name]
    order = cost.reset_index(drop=True)
    best = max(singles, key=lambda name: np.nan_to_num(rank.correlation(own[name], order), nan=-1))
    for part, rate, difference in parts(trials):
        rows = of_pairs(measures, part, difference.index)
        table = pd.DataFrame(
            {
                CHOSEN: rank.chosen(rows),
                NET: rank.net_loss(rows, rate),
                "net progress in windows": rank.net_loss(rows, rate, "window"),
                "progress": -rows["replay_progress"],
                "displacement error": rows["replay_displacement_error"],
                "displacement error in windows": rows["window_displacement_error"],
                ONE_STEP: rows["step_mean_abs_error"],
                f"best of one step ({best.removeprefix('step_')})": rows[best],
                **{name: fit.predict(rows) for name, fit in fitted.items()},
                "bits per element": -rows["replay_bits_per_element"],
            }
        )
        table["explodes"] = rows["replay_explosion_share"] > 0
        yield part, rate, difference, table


def scores(trials: pd.DataFrame, measures: pd.DataFrame) -> pd.DataFrame:
    """One row per part, rate, set of pairs and predictor, with its rank correlation."""
    records = []
    for part, rate, difference, table in predictions(trials, measures):
        cost = difference.mean(axis=1).reset_index(drop=True)
        calm = ~table["explodes"]
        for chosen, rows in (("all", calm | True), ("no explosion", calm)):
            if rows.sum() < LEAST:
                continue
            for name in table.columns.drop("explodes"):
                one, other = table.loc[rows, name], cost[rows]
                low, high = rank.interval(one, other)
                records.append(
                    {
                        "part": part,
                        "rate": rate,
                        "chosen": chosen,
                        "pairs": int(rows.sum()),
                        "predictor": name,
                        "correlation": rank.correlation(one, other),
                        "low": low,
                        "high": high,
                        "ceiling": rank.ceiling(difference.reset_index(drop=True)[rows]),
                    }
                )
    return pd.DataFrame(records)


def verdicts(trials: pd.DataFrame, measures: pd.DataFrame) -> pd.DataFrame:
    """Costs of the pairs of each verdict of `qmaps.recommend`, verdicts on single rows.

    One row per part, rate and verdict: `part`, `rate`, `verdict`, `pairs` (their number), and the
    `median`, `high` (the 90th percentile) and `most` of their outcomes. Loss that is not a number
    counts as infinite.
    """
    records = []
    for part, rate, difference in parts(trials):
        rows = of_pairs(measures, part, difference.index).rename(
            columns=lambda name: str(name).removeprefix("replay_")
        )
        levels = [verdict.level(row) for row in verdict.records(rows)]
        cost = difference.mean(axis=1).fillna(np.inf).to_numpy()
        for name in verdict.LEVELS:
            own = cost[[each == name for each in levels]]
            if len(own):
                high = float(np.quantile(own, 0.9, method="higher"))
                records.append(
                    {"part": part, "rate": rate, "verdict": name, "pairs": len(own),
                     "median": float(np.median(own)), "high": high, "most": float(own.max())}
                )  # fmt: skip
    return pd.DataFrame(records)


def page(predicted: pd.DataFrame, trials: pd.DataFrame, judged: pd.DataFrame, command: str) -> str:
    """The report: of `scores`, the trials, and `verdicts`."""
    lines = [
        "# What predicts the cost of a quantizer: results",
        "",
        f"`{command}`",
        "",
        f"torch {torch.__version__}. The experiment is described in [README.md](README.md), which "
        "was written before it. Numbers are Spearman's rank correlations between a predictor and "
        "the final validation loss minus that of 32-bit AdamW, with the 95 % interval of a "
        "bootstrap over pairs. The ceiling is what the noise of the seeds allows.",
        "",
        "![outcomes against predictions](prediction.png)",
    ]
    for (part, rate), own in predicted.groupby(["part", "rate"], sort=False):
        seeds = trials[trials["part"] == part]["seed"].nunique()
        count = (
            f"{seeds} of {PARTS[part].seeds} seeds"
            if seeds < PARTS[part].seeds
            else f"{seeds} seeds"
        )
        lines += ["", f"## {part}, {rate:g} x the tuned rate, {count}", ""]
        cells = []
        for name, both in own.groupby("predictor", sort=False):
            by = both.set_index("chosen")
            cells.append([str(name), *(_cell(by.loc[each]) for each in by.index)])
        head = [f"{row.chosen}: {row.pairs} pairs (ceiling {row.ceiling:.2f})"
                for row in own.drop_duplicates("chosen").itertuples()]  # fmt: skip
        lines += markdown(("predictor", *head), cells)
    lines += [
        "",
        "## What verdicts are worth",
        "",
        "`qmaps.recommend` judges a pair by its replay. Its thresholds of caution and unsafe were "
        "chosen on `small`, that of clean on [four models](steps.md). The final validation loss "
        "minus that of 32-bit AdamW, over the pairs of each verdict:",
        "",
    ]
    cells = [
        [f"{row.part}, {row.rate:g} x the rate", str(row.verdict), str(row.pairs),
         *(f"{value:+.4f}" if abs(value) < 100 else f"{value:+.0e}"
           for value in (row.median, row.high, row.most))]
        for row in judged.itertuples()
    ]  # fmt: skip
    lines += markdown(("part", "verdict", "pairs", "median", "90 % are below", "largest"), cells)
    return "\n".join(lines) + "\n"


def _cell(row: pd.Series) -> str:
    if np.isnan(row["correlation"]):
        return "no value"
    return f"{row['correlation']:.2f} ({row['low']:.2f} to {row['high']:.2f})"


def draw(trials: pd.DataFrame, measures: pd.DataFrame, path: Path) -> None:
    """Write a PNG: outcomes against the chosen predictor, and against the error of one step."""
    predicted = list(predictions(trials, measures))
    figure = Figure(figsize=(3.3 * len(predicted), 6.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, len(predicted), squeeze=False)
    for column, (part, rate, difference, table) in enumerate(predicted):
        cost = difference.mean(axis=1).to_numpy()
        worst = np.nanmax(cost[np.isfinite(cost)], initial=1.0)
        for row, (name, low) in enumerate(((CHOSEN, 0.1), (ONE_STEP, 1e-4))):
            axes = panels[row, column]
            x = table[name].to_numpy().clip(max=1e3)
            for explodes, colour in ((False, "#4269d0"), (True, "#ff725c")):
                own = table["explodes"].to_numpy() == explodes
                axes.plot(x[own], cost[own].clip(max=2 * worst), "o", color=colour, alpha=0.6,
                          label="updates explode" if explodes else "no explosion")  # fmt: skip
            axes.set_xscale("symlog", linthresh=low)
            axes.set_yscale("symlog", linthresh=0.01)
            axes.axhline(0, color="#9498a0", linewidth=0.8)
            axes.set_xlabel(name)
            if name == CHOSEN:
                axes.set_xticks(
                    [-0.1, 0, 0.1, 1, 10, 1000],
                    ["-0.1", "0", "0.1", "1", "10", "≥1000"],
                )
            if column == 0:
                axes.set_ylabel("loss minus 32 bits")
        panels[0, column].set_title(f"{part}, rate x {rate:g}")
    if predicted[0][3]["explodes"].nunique() > 1:
        panels[0, 0].legend(frameon=False)
    figure.savefig(path, format="png", dpi=110)
