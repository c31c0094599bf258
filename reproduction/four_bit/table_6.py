"""Table 6: which moment costs what."""

from __future__ import annotations

from qmaps.lab.report.claim import Claim
from qmaps.lab.report.published import published
from reproduction import committed
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.numbers import ratio_interval, smaller
from reproduction.stand_ins import StandIn, in_place

ROWS = {
    "none": ("AdamW", "32bit"),
    "first B2048/DE": ("AdamW", "B2048/DE@4s + 32bit"),
    "first B128/DE": ("AdamW", "B128/DE@4s + 32bit"),
    "first B128/DE and second rank-1/linear": ("AdamW", "paper-4bit"),
    "first B128/DE and second factorized": ("AdamWFactor", "paper-4bit"),
    "second rank-1/linear": ("AdamW", "32bit + rank1/linear@4u"),
    "first B128/DE, rounded stochastically, and second rank-1/linear":
        ("AdamW", "B128/DE@4s+sr + rank1/linear@4u"),
}  # fmt: skip
SAID = (
    ("Smaller blocks of the first moment lower the loss", "first B128/DE", "first B2048/DE"),
    (
        "Factorizing the second moment lowers it",
        "first B128/DE and second factorized",
        "first B128/DE and second rank-1/linear",
    ),
)
"""What the paper says of its table: a statement, the better row, the worse one."""
PAIR = "B128/DE@4s + rank1/linear@4u"


def build(context: Context) -> Frames:
    """Runs with one moment quantized, or both."""
    return {"losses": committed.first_moment(context), "judges": committed.judges(context)}


def find(frames: Frames) -> Finding:
    """Losses in place of accuracy."""
    runs = frames["losses"]
    means = committed.means(runs)
    statements, stand_ins = [], []
    for workload in means["workload"].unique():
        ours = committed.losses(means, workload, ROWS)
        stand_ins.append(StandIn("accuracy", f"validation loss, {workload}", ours))
        by_seed = runs[runs["workload"] == workload].pivot(
            index="seed", columns=["optimizer", "width"], values="loss"
        )
        for text, better, worse in SAID:
            pair = list(by_seed[ROWS[better]]), list(by_seed[ROWS[worse]])
            ratio, low, high = ratio_interval(*pair)
            statements.append(
                Claim(
                    f"{text} ({workload}, {len(by_seed)} seeds).",
                    smaller(*pair),
                    f"{ratio:.3f} times the loss ({low:.3f} to {high:.3f}).",
                )
            )
    return Finding(
        numbers=in_place(published("4-bit-optimizers", EXHIBIT.name), stand_ins),
        statements=statements + committed.alike(frames["judges"], PAIR, "4-bit AdamW"),
        why="The paper's are accuracies of Swin-T on ImageNet, which cannot be had here; in their "
        "place stand losses (lower is better) of small models, of text and of images, ± the "
        "standard error over seeds, at rates that were not tuned. Statements are those of the "
        "paper: intervals are at 95 % over seeds, and one that holds 1 cannot tell. That both "
        "moments together cost little is asked at the rate that is best for 32 bits.",
    )


EXHIBIT = Exhibit(
    name="table-6",
    covers=("Table 6",),
    title="What quantizing each moment costs",
    needs=Needs.REPORTS,
    build=build,
    find=find,
    command=committed.FIRST_MOMENT,
)
