"""Table 1: the ablation of second moments."""

from __future__ import annotations

from qmaps.lab.report.published import published
from reproduction import committed
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.stand_ins import StandIn, in_place

FIRST = "B128/DE@4s | "
BASE = "32 bits | 32 bits | no"


def build(context: Context) -> Frames:
    """Summary of the runs with the paper's first moment, and of those in 32 bits."""
    summary = committed.ablation(context, "four-bit")
    chosen = summary["setting"].str.startswith(FIRST) | (summary["setting"] == BASE)
    return {"summary": summary[chosen].reset_index(drop=True)}


def find(frames: Frames) -> Finding:
    """Unstable runs, and the loss in place of BLEU."""
    unstable: dict[tuple[str, str], float] = {}
    losses: dict[str, tuple[float, float]] = {}
    for row in frames["summary"].itertuples():
        name = str(row.setting)
        if name == FIRST + "32 bits | no":  # the paper's baseline has no quantized moment
            continue
        name = name.removeprefix(FIRST) if name != BASE else "32 bits | no"
        unstable[name, "unstable runs"] = float(str(row.unstable))
        losses[name] = (float(str(row.loss)), float(str(row.error)))
    return Finding(
        numbers=in_place(
            published("4-bit-optimizers", EXHIBIT.name),
            [StandIn("BLEU", f"validation loss, {committed.LANGUAGE}", losses)],
            unstable,
        ),
        why="Rows: second moment | stable embedding; the first moment is B128/DE. The paper "
        "fine-tunes GPT-2 Medium on E2E, which cannot be had here, and counts BLEU; in its place "
        "stands the loss (lower is better) in nats per byte of stdlib-lm-tiny after a hundred "
        "steps, of the median stable run, ± the standard error over stable runs. Where none is "
        "stable there is no loss to compare.",
        tables={"summary": frames["summary"]},
    )


EXHIBIT = Exhibit(
    name="table-1",
    covers=("Table 1",),
    title="Ablation of second moments: normalization, map, rounding, factorization",
    needs=Needs.REPORTS,
    build=build,
    find=find,
    command=committed.ABLATIONS,
)
