"""Table 6: which moment costs what."""

from __future__ import annotations

import pandas as pd

from qmaps.lab.report.claim import Claim
from qmaps.lab.report.published import published
from reproduction import at_best, committed
from reproduction.at_best import FULL
from reproduction.context import Context
from reproduction.differences import Difference
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.numbers import ratio_interval, smaller
from reproduction.stand_ins import in_place

STUDY = "four-bit-moments"
JUDGE = "docstring-lm"
GROUP = f"{JUDGE}, AdamW"
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
SAID = (
    ("Smaller blocks of the first moment lower the loss", "first B128/DE", "first B2048/DE"),
    (
        "Factorizing the second moment lowers it",
        "first B128/DE and second factorized",
        "first B128/DE and second rank-1/linear",
    ),
)
"""What the paper says of its table: a statement, the better row, the worse one."""


def build(context: Context) -> Frames:
    """Runs with one moment quantized, or both, and those of all judges."""
    return {
        "runs": at_best.runs(context, STUDY),
        "judges": committed.judges(context),
        "tuned": committed.tuned(context),
    }


def find(frames: Frames) -> Finding:
    """Losses in place of accuracy."""
    losses = {
        name: at_best.by_seed(frames["runs"], GROUP, quantizer, optimizer)
        for name, (quantizer, optimizer) in ROWS.items()
    }
    rows = {name: at_best.beside(given, losses["none"]) for name, given in losses.items()}
    statements = []
    for text, better, worse in SAID:
        pair = losses[better].sort_index().tolist(), losses[worse].sort_index().tolist()
        ratio, low, high = ratio_interval(*pair)
        statements.append(
            Claim(
                f"{text} ({JUDGE}, {len(losses[better])} seeds).",
                smaller(*pair),
                f"{ratio:.4f} times the loss ({low:.4f} to {high:.4f}).",
            )
        )
    paper = published("4-bit-optimizers", EXHIBIT.name)
    return Finding(
        numbers=in_place(paper, [at_best.stand_in("accuracy", JUDGE, rows)]),
        statements=statements + committed.alike(frames["judges"], PAIR, "4-bit AdamW"),
        differences=[factored(frames["tuned"])],
        why="The paper's are accuracies of Swin-T on ImageNet, which cannot be had here; in their "
        "place stand losses (lower is better) of a small model of text that goes on from trained "
        "weights, at the rate that is best for 32 bits, ± half of the 95 % interval of the "
        "difference to 32 bits, seed by seed. Statements are those of the paper: intervals are at "
        "95 % over seeds, and one that holds 1 cannot tell. "
        + at_best.power(rows.values(), paper, "accuracy"),
        tables={"losses": at_best.table(rows)},
    )


def factored(tuned: pd.DataFrame) -> Difference:
    """Whether the factored second moment is ahead in other models."""
    found = committed.by_key(tuned)
    pairs = {
        workload: (found[workload, "AdamWFactor", "paper-4bit"]["loss"],
                   found[workload, "AdamW", "paper-4bit"]["loss"])
        for workload in (committed.VISION, committed.LANGUAGE)
    }  # fmt: skip
    said = ", ".join(f"{one:.4f} against {two:.4f} ({name})" for name, (one, two) in pairs.items())
    return Difference(
        "Whether the factorized second moment ends lower depends on the model: trained from random "
        f"weights, each at its own best rate, it does: {said} (reports/tuned.md, five seeds).",
        all(one < two for one, two in pairs.values()),
        "[Ff]actoriz",
    )


EXHIBIT = Exhibit(
    name="table-6",
    covers=("Table 6",),
    title="What quantizing each moment costs",
    needs=Needs.REPORTS,
    build=build,
    find=find,
    command=f"{at_best.command(STUDY)}`, of `{committed.JUDGES}` and of `{committed.TUNED}",
)
