"""Table 6: the cost of quantizing each moment."""

from __future__ import annotations

import math

import pandas as pd

from reproduction import committed, tuned_losses
from reproduction.claim import Claim, published
from reproduction.context import Context
from reproduction.differences import Difference
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.numbers import ratio_interval, smaller
from reproduction.proxy_metrics import ProxyMetric, in_place
from reproduction.tuned_losses import FULL

STUDY = "four-bit-moments"
TASK = "docstring-lm"
GROUP = f"{TASK}, AdamW"
PAIR = "B128/DE@4s + rank1/linear@4u"
ROWS = {
    "none": (FULL, "AdamW"),
    "first B2048/DE": ("B2048/DE@4s + 32bit", "AdamW"),
    "first B128/DE": ("B128/DE@4s + 32bit", "AdamW"),
    "first B128/DE and second rank-1/linear": (PAIR, "AdamW"),
    "first B128/DE and second factorized": (PAIR, "AdamWFactor"),
    "second rank-1/linear": ("32bit + rank1/linear@4u", "AdamW"),
    "first B128/DE, rounded stochastically, and second rank-1/linear":
        ("B128/DE@4s+sr + rank1/linear@4u", "AdamW"),
}  # fmt: skip
"""Quantizers and optimizer of each row."""
OTHERS = ("lm-tiny", "minilm", "stdlib-lm", "digits")
"""Other workloads, with runs of some rows."""
SAID = (
    ("Smaller blocks of the first moment lower the loss", "first B128/DE", "first B2048/DE"),
    (
        "Factorizing the second moment lowers it",
        "first B128/DE and second factorized",
        "first B128/DE and second rank-1/linear",
    ),
)
"""The paper's statements on its table: a statement, the better row, the worse one."""


def build(context: Context) -> Frames:
    """Runs with one moment quantized, or both, those of all tasks, and those at tuned rates."""
    return {
        "runs": tuned_losses.runs(context, STUDY),
        "judges": committed.by_task(context),
        "tuned": context.table("tuned.csv", committed.TUNED),
    }


def find(frames: Frames) -> Finding:
    """Losses in place of accuracy."""
    losses = {
        name: tuned_losses.by_seed(frames["runs"], GROUP, quantizer, optimizer)
        for name, (quantizer, optimizer) in ROWS.items()
    }
    rows = {name: tuned_losses.beside(row, losses["none"]) for name, row in losses.items()}
    statements = []
    for text, better, worse in SAID:
        pair = losses[better].sort_index().tolist(), losses[worse].sort_index().tolist()
        ratio, low, high = ratio_interval(*pair)
        statements.append(
            Claim(
                f"{text} ({TASK}, {len(losses[better])} seeds).",
                smaller(*pair),
                f"{ratio:.4f} times the loss ({low:.4f} to {high:.4f}).",
            )
        )
    paper = published("4-bit-optimizers", EXHIBIT.name)
    other_tasks = [accuracy_proxy(frames["judges"], workload) for workload in OTHERS]
    numbers = in_place(paper, [tuned_losses.proxy("accuracy", TASK, rows), *other_tasks])
    trained = numbers["paper"].notna() & numbers["ours"].notna()
    return Finding(
        numbers=numbers[trained | numbers["proxy"].str.endswith(TASK)].reset_index(drop=True),
        statements=[*statements, *tuned_factored(frames["tuned"])],
        differences=[factored(frames["tuned"])],
        why="The paper's are accuracies of Swin-T on ImageNet, which cannot be had here; in their "
        "place stand losses (lower is better) of a small model of text that goes on from trained "
        "weights, and of four other models for the rows that were trained there, at the rate that "
        "is best for 32 bits, ± half of the 95 % interval of the difference to 32 bits, seed by "
        "seed. Where these make a row equal to all others that the paper sets apart from it, it "
        "cannot tell. Statements are those of the paper: intervals are at 95 % over seeds, and one "
        "that holds 1 cannot tell. " + tuned_losses.power(rows.values(), paper, "accuracy"),
        tables={"losses": tuned_losses.table(rows)},
    )


def accuracy_proxy(differences: pd.DataFrame, workload: str) -> ProxyMetric:
    """Losses of another task in place of accuracy, for the rows with runs.

    Args:
        differences: result of `committed.by_task`.
        workload: name of the workload.
    """
    of = differences[differences["judge"] == workload].set_index("quantizer")
    base = float(of["base"][FULL])  # some quantizers have fewer seeds
    rows = {}
    for name, (quantizer, optimizer) in ROWS.items():
        spec = quantizer.replace("32bit", FULL)
        if optimizer == "AdamW" and spec in of.index:
            apart = float(of["difference"][spec])
            rows[name] = (base + apart, float(of["high"][spec]) - apart)
    return ProxyMetric("accuracy", f"validation loss, {workload}", rows)


def tuned_factored(runs: pd.DataFrame) -> list[Claim]:
    """The statement on factorizing, in models with rates tuned for each row.

    Args:
        runs: reports/tuned.csv.
    """
    claims = []
    for workload in (committed.VISION, committed.LANGUAGE):
        of = runs[(runs["workload"] == workload) & (runs["width"] == "paper-4bit")]
        losses = [_tuned(of[of["optimizer"] == name]) for name in ("AdamWFactor", "AdamW")]
        ratio, low, high = ratio_interval(*losses)
        claims.append(
            Claim(
                f"{SAID[1][0]} ({workload}, {len(losses[0])} seeds, each at its own best rate).",
                smaller(*losses),
                f"{ratio:.4f} times the loss ({low:.4f} to {high:.4f}).",
            )
        )
    return claims


def _tuned(runs: pd.DataFrame) -> list[float]:
    """The losses at the rate with the lowest mean, by seed."""
    best = runs.fillna({"loss": math.inf}).groupby("rate")["loss"].mean().idxmin()
    return runs[runs["rate"] == best].sort_values("seed")["loss"].tolist()


def factored(runs: pd.DataFrame) -> Difference:
    """Test with another model's seeds if the factored second moment ends lower there.

    Args:
        runs: reports/tuned.csv.
    """
    claims = tuned_factored(runs)
    said = " ".join(f"{claim.text} {claim.detail}" for claim in claims)
    return Difference(
        "Whether the factorized second moment ends lower depends on the model. Trained from random "
        f"weights: {said} An interval that holds 1 cannot tell (reports/tuned.md).",
        any(claim.holds is True for claim in claims),
        "[Ff]actoriz",
    )


EXHIBIT = Exhibit(
    name="table-6",
    covers=("Table 6",),
    title="What quantizing each moment costs",
    needs=Needs.REPORTS,
    build=build,
    find=find,
    command=f"{tuned_losses.command(STUDY)}`, of `{committed.TASK_RUNS}` and of `{committed.TUNED}",
)
