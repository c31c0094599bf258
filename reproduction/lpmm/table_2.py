"""Table 2: the ablation of rounding and micro-batches."""

from __future__ import annotations

from reproduction import tuned_losses
from reproduction.claim import Claim, published
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.lpmm import _ablation as runs
from reproduction.proxy_metrics import ProxyMetric, in_place


def build(context: Context) -> Frames:
    """The summary of the runs."""
    return {"runs": runs.tuned(context)}


def find(frames: Frames) -> Finding:
    """Measure the gain by each of the two techniques."""
    proxies, statements = [], []
    for workload_runs in runs.each(frames["runs"]):
        ours: dict[str, float | tuple[float, float]] = {}
        for bits in runs.WIDTHS:
            ours[f"{bits} bits, nearest"] = workload_runs.behind(bits, runs.NEAREST)
            ours[f"{bits} bits, stochastic"] = workload_runs.behind(bits)
            best = workload_runs.best(bits, several=True)
            ours[f"{bits} bits, micro-batches"] = workload_runs.behind(bits, n=best)
        proxies.append(ProxyMetric("top-1 accuracy", runs.lost(workload_runs), ours))
        statements += _statements(workload_runs)
    return Finding(
        numbers=in_place(published("low-precision-model-memory", EXHIBIT.name), proxies),
        statements=statements,
        differences=[runs.easier(workload_runs) for workload_runs in runs.each(frames["runs"])],
        why="The paper's numbers follow from its table 3; those of rounding to nearest are not in "
        "our copy. Ours are final validation losses minus those of full precision with the same N, "
        "seed by seed, ± the standard error, so that lower is better; micro-batches: the best N "
        "above 1. The paper's 8-bit runs collapse when they are rounded to nearest; here a run "
        "fails that ends more than two spreads over seeds behind full precision. "
        f"{runs.TUNED} {' '.join(map(runs.power, runs.each(frames['runs'])))}",
        tables={"runs": frames["runs"]},
    )


def _statements(workload_runs: runs.Runs) -> list[Claim]:
    where = f"({workload_runs.workload}, {workload_runs.seeds} seeds)"
    behind = {bits: workload_runs.of("behind", bits, runs.NEAREST) for bits in runs.WIDTHS}
    spread = workload_runs.of("spread", runs.FULL)
    nearest, stochastic = workload_runs.loss(8, runs.NEAREST), workload_runs.loss(8)
    gains = {bits: workload_runs.gain(bits) for bits in runs.WIDTHS}
    best = {bits: workload_runs.best(bits, several=True) for bits in runs.WIDTHS}
    n = workload_runs.best(12)
    return [
        Claim(
            f"8 bits fail when they are rounded to nearest {where}.",
            bool(behind[8] > runs.WITHIN * spread),
            f"Final validation loss {workload_runs.beside_full(8, runs.NEAREST)}.",
        ),
        Claim(
            f"Stochastic rounding is what 8 bits need {where}.",
            bool(stochastic < nearest and workload_runs.of("behind", 8) <= runs.WITHIN * spread),
            f"Final validation loss {workload_runs.beside_full(8)}; to nearest {nearest:.4f}.",
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
            runs.all_above(gains.values()),
            "Less behind full precision than with N = 1: "
            + "; ".join(
                f"{bits} bits {gain:.4f} ± {error:.4f} with N = {best[bits]}"
                for bits, (gain, error) in gains.items()
            )
            + ".",
        ),
        runs.alike(f"12 bits at the best N (N = {n}) match full precision", workload_runs, 12, n),
    ]


EXHIBIT = Exhibit(
    name="table-2",
    covers=("Table 2",),
    title="Ablation: rounding to nearest, stochastic rounding, micro-batches",
    needs=Needs.REPORTS,
    build=build,
    find=find,
    command=tuned_losses.command(runs.STUDY),
)
