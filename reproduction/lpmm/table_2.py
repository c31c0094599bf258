"""Table 2: the ablation of rounding and micro-batches."""

from __future__ import annotations

from qmaps.lab.report.claim import Claim
from qmaps.lab.report.published import published
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.lpmm import _ablation as runs
from reproduction.stand_ins import StandIn, in_place


def build(context: Context) -> Frames:
    """The summary of the runs."""
    return {"runs": runs.ablation(context)}


def find(frames: Frames) -> Finding:
    """What each of the two techniques brings."""
    stand_ins, statements = [], []
    for found in runs.each(frames["runs"]):
        ours: dict[str, float | tuple[float, float]] = {"full precision": found.shown(runs.FULL)}
        for bits in runs.WIDTHS:
            ours[f"{bits} bits, nearest"] = found.shown(bits, runs.NEAREST)
            ours[f"{bits} bits, stochastic"] = found.shown(bits)
            best = found.best(bits, several=True)
            ours[f"{bits} bits, micro-batches"] = found.shown(bits, n=best)
        stand_ins.append(StandIn("top-1 accuracy", runs.quantity(found), ours))
        statements += _statements(found)
    return Finding(
        numbers=in_place(published("low-precision-model-memory", EXHIBIT.name), stand_ins),
        statements=statements,
        differences=[
            each
            for found in runs.each(frames["runs"])
            for each in (runs.sums(found), runs.easy(found))
        ],
        why="The paper's numbers follow from its table 3; those of rounding to nearest are not in "
        "our copy. Ours are final validation losses, ± the standard error over seeds (± the spread "
        "over seeds in the statements), so that lower is better; micro-batches: the best N above "
        "1. The paper's 8-bit runs collapse when they are rounded to nearest; here a run fails "
        "that ends more than two spreads over seeds behind full precision. N gradients are summed "
        "at one learning rate over the same data, so that steps are N times as "
        f"long and N times as few, for full precision too. {runs.UNTUNED}",
        tables={"runs": frames["runs"]},
    )


def _statements(found: runs.Runs) -> list[Claim]:
    where = f"({found.workload}, {found.seeds} seeds)"
    behind = {bits: found.of("behind", bits, runs.NEAREST) for bits in runs.WIDTHS}
    spread = found.of("spread", runs.FULL)
    nearest, stochastic = found.loss(8, runs.NEAREST), found.loss(8)
    best = {bits: found.best(bits, several=True) for bits in runs.WIDTHS}
    helped = {bits: found.gain(bits) > 0 for bits in runs.WIDTHS}
    n = found.best(12)
    return [
        Claim(
            f"8 bits fail when they are rounded to nearest {where}.",
            bool(behind[8] > runs.WITHIN * spread),
            f"Final validation loss {found.beside_full(8, runs.NEAREST)}.",
        ),
        Claim(
            f"Stochastic rounding is what 8 bits need {where}.",
            bool(stochastic < nearest and found.of("behind", 8) <= runs.WITHIN * spread),
            f"Final validation loss {found.beside_full(8)}; to nearest {nearest:.4f}.",
        ),
        Claim(
            f"The more bits, the less rounding to nearest costs {where}.",
            bool(behind[12] < behind[10] < behind[8]),
            "Behind full precision: "
            + ", ".join(f"{bits} bits {behind[bits]:+.4f}" for bits in runs.WIDTHS)
            + ".",
        ),
        Claim(
            f"Micro-batches help at every width {where}.",
            all(helped.values()),
            "; ".join(
                f"{bits} bits: {found.said(bits, n=best[bits])} with N = {best[bits]}, "
                f"{found.said(bits)} without"
                for bits in runs.WIDTHS
            )
            + f"; full precision: {found.said(runs.FULL, n=best[8])} with N = {best[8]}, "
            f"{found.said(runs.FULL)} without.",
        ),
        Claim(
            f"12 bits at the best N match full precision {where}.",
            bool(found.loss(12, n=n) - found.loss(runs.FULL) <= runs.WITHIN * spread),
            f"N = {n}: {found.said(12, n=n)} against {found.said(runs.FULL)} ± {spread:.4f}.",
        ),
    ]


EXHIBIT = Exhibit(
    name="table-2",
    covers=("Table 2",),
    title="Ablation: rounding to nearest, stochastic rounding, micro-batches",
    needs=Needs.REPORTS,
    build=build,
    find=find,
    command=runs.COMMAND,
)
