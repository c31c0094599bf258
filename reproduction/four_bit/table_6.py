"""Table 6: which moment costs what."""

from __future__ import annotations

from qmaps.lab.report.claim import Claim
from qmaps.lab.report.published import published
from reproduction import committed
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.stand_ins import StandIn, in_place

WIDTHS = {
    "none": "32bit",
    "first B128/DE": "B128/DE@4s + 32bit",
    "first B128/DE and second rank-1/linear": "paper-4bit",
    "second rank-1/linear": "32bit + rank1/linear@4u",
    "first B128/DE, rounded stochastically, and second rank-1/linear":
        "B128/DE@4s+sr + rank1/linear@4u",
}  # fmt: skip


def build(context: Context) -> Frames:
    """Runs with one moment quantized, or both."""
    return {"losses": committed.first_moment(context)}


def find(frames: Frames) -> Finding:
    """Losses in place of accuracy."""
    losses = frames["losses"].set_index(["workload", "width"])["loss"]
    keys = {name: ("AdamW", width) for name, width in WIDTHS.items()}
    statements, stand_ins = [], []
    for workload in frames["losses"]["workload"].unique():
        ours = committed.losses(frames["losses"], workload, keys)
        stand_ins.append(StandIn("accuracy", f"validation loss, {workload}", ours))
        both, first = (losses[workload, width] for width in ("paper-4bit", "B128/DE@4s + 32bit"))
        base = losses[workload, "32bit"]
        statements += [
            Claim(
                f"Quantizing the second moment costs little beside the first ({workload}).",
                bool(abs(both - first) < abs(first - base)),
                f"First {first - base:+.4f}, both {both - base:+.4f}.",
            )
        ]
    return Finding(
        numbers=in_place(published("4-bit-optimizers", EXHIBIT.name), stand_ins),
        statements=statements,
        why="The paper's are accuracies of Swin-T on ImageNet, which cannot be had here; in their "
        "place stand losses (lower is better) of small models, of text and of images, ± the "
        "standard error over seeds. First moments in blocks of 2048 and factorized second moments "
        "beside 4-bit first ones are not among these runs.",
    )


EXHIBIT = Exhibit(
    name="table-6",
    covers=("Table 6",),
    title="What quantizing each moment costs",
    needs=Needs.REPORTS,
    build=build,
    find=find,
    command="python -m benchmarks.parity, with the options of reports/parity-first-moment.md",
)
