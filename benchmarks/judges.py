"""The judges' learning rates, their power, and what quantizers cost them in steps.

``python -m benchmarks.judges`` trains each judge with 32-bit AdamW at rates around its own, then
at its own rate with the quantizers of `KNOWN` and `FEWER` and, in 32 bits, for fewer and for more
steps. It goes on where it was stopped and with the rows of reports/judges.csv and
reports/judges-lengths.csv, and writes both, and reports/judges.{md,png}. Judges that are named run
alone; the rows of others stay. A rate is right if it is the best of the sweep and not its first or
last.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.blind.equivalence import in_steps, percent
from benchmarks.blind.plan import CURVE_LENGTHS, MARGIN, other_lengths
from benchmarks.command import among, command_line, count, one_line_errors
from benchmarks.markdown import markdown
from benchmarks.paired import detectable, paired
from benchmarks.trials import FULL, Trial, restore, run_all, with_others
from qmaps.storage.files import output_folder, records, replacing
from reproduction.judges import JUDGES
from reproduction.report_file import write_report


@dataclass(frozen=True)
class Effort:
    """Number of rates and seeds of a judge.

    Attributes:
        factors: rates of the sweep, in units of the judge's own.
        rate_seeds: seeds of the sweep.
        seeds: seeds at the judge's own rate, with each of `KNOWN` and `FEWER`.
        length_seeds: seeds of the runs of other lengths.
    """

    factors: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)
    rate_seeds: int = 3
    seeds: int = 8
    length_seeds: int = 8


EFFORTS = {
    "stdlib-lm": Effort((0.5, 1.0, 2.0), 2, length_seeds=2),
    "minilm": Effort((0.5, 1.0, 2.0), 4, length_seeds=2),
}
"""Efforts of judges whose runs take minutes."""
REPORTS = Path(__file__).parents[1] / "reports"
JUDGED, LENGTHS = REPORTS / "judges.csv", REPORTS / "judges-lengths.csv"
"""The rows that studies compare theirs with, and those of `lengths`."""
PAPER = "B128/DE@4s + rank1/linear@4u"
KNOWN = (
    FULL,
    "B256/DE@8s + B256/DE-0@8u",
    PAPER,
    "B128/DE@4s+sr + B128/DE-0@4u",
)
"""32 bits, 8 bits, the 4-bit paper's pair, and one of the same size with stochastic rounding."""
FEWER = (
    "B128/DE@3s+sr + B128/DE-0@3u",
    "B16x8/linear0(full=true)@2s+sr + B32x8/power3@2u",
    "B32x8/quantile-normal@2s+sr + B128/power3@2u",
)
"""The presets of 3 and 2 bits, and another pair of 2 bits (`benchmarks.two_bits` has more)."""


SEEDS = {("minilm", FEWER[1]): 5, ("stdlib-lm", FEWER[1]): 4}
"""Number of seeds of a pair on a judge, if smaller than that of its other pairs."""


def effort(name: str) -> Effort:
    """The effort for a judge."""
    return EFFORTS.get(name, Effort())


def seeds(name: str, quantizer: str) -> int:
    """Number of seeds that are trained of a pair on a judge."""
    return SEEDS.get((name, quantizer), effort(name).seeds)


def trials(name: str) -> list[Trial]:
    """Trials on a judge."""
    much = effort(name)
    own = [
        Trial(name, JUDGES[name], quantizer, seed)
        for quantizer in (*KNOWN, *FEWER)
        for seed in range(seeds(name, quantizer))
    ]
    rates = [
        Trial(name, JUDGES[name], FULL, seed).at(factor)
        for factor in much.factors
        for seed in range(much.rate_seeds)
    ]
    return list({trial.key: trial for trial in [*rates, *own]}.values())


def lengths(name: str) -> list[Trial]:
    """Trials of a judge in 32 bits of other lengths, which tell what a step is worth."""
    return other_lengths(name, JUDGES[name], effort(name).length_seeds)


def in_order(frame: pd.DataFrame, report: Path) -> pd.DataFrame:
    """The rows of `frame`, and those of judges not in it from the report of an earlier call.

    Args:
        frame: rows of `run_all`.
        report: the CSV of the report; it may be absent.

    Returns:
        The rows in the order of `JUDGES`.
    """
    frame = with_others(frame, report)
    places = {name: place for place, name in enumerate(JUDGES)}
    return frame.sort_values(
        "judge", key=lambda names: names.map(places), kind="stable", ignore_index=True
    )


def rates(frame: pd.DataFrame) -> pd.DataFrame:
    """Loss by judge and learning rate.

    Args:
        frame: rows of `run_all`.

    Returns:
        `judge`, `lr`, `seeds`, `mean` and `std` of the final loss of 32-bit AdamW over the seeds
        of the sweep, and `best`, whether no other rate of the judge has a lower mean.
    """
    most = frame["judge"].map(lambda name: effort(name).rate_seeds)
    full = frame[(frame["quantizer"] == FULL) & (frame["seed"] < most)]
    losses = full.groupby(["judge", "lr"], sort=False)["loss"]
    table = pd.DataFrame(
        {"seeds": losses.count(), "mean": losses.mean(), "std": losses.std()}
    ).reset_index()
    table["best"] = table["mean"] == table.groupby("judge")["mean"].transform("min")
    return table.sort_values(["judge", "lr"], ignore_index=True)


def at_own_rate(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of `run_all` whose learning rate is the judge's own."""
    return frame[[row.lr == JUDGES[row.judge].lr for row in frame.itertuples()]]


def minus_full(frame: pd.DataFrame, judged: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Final losses minus that of 32 bits with the same seed.

    Args:
        frame: rows of `run_all`, with the columns `by`.
        judged: rows of reports/judges.csv.
        by: columns that tell what is compared.

    Returns:
        `judge`, the columns `by`, `seeds`, `difference` (mean; infinite where a run diverged),
        `low` and `high` (95 % confidence interval).
    """
    at_best = at_own_rate(judged)
    exact = at_best[at_best["quantizer"] == FULL].set_index(["judge", "seed"])["loss"]
    records = []
    for judge, rows in frame.groupby("judge", sort=False):
        full = exact[judge]
        for key, group in rows.groupby(list(by)):
            losses = group.set_index("seed")["loss"].fillna(float("inf"))
            compared = paired(losses, full[full.index.isin(losses.index)])
            records.append({"judge": judge, **dict(zip(by, key, strict=True)), **compared})
    return pd.DataFrame(records)


def power(frame: pd.DataFrame) -> pd.DataFrame:
    """Differences to 32 bits at the judge's own rate, paired by seed.

    Args:
        frame: rows of `run_all`.

    Returns:
        `judge`, `quantizer`, `seeds`, `loss` (mean), `difference` (mean), `std` (standard
        deviation of the differences over seeds), `low` and `high` (95 % confidence interval of
        `difference`), `gap_ratio` (difference of the paper's 4-bit pair by `std`) and
        `detectable` (the difference that a paired t-test at 5 % sees with a probability of 80 %
        in as many seeds).
    """
    table = at_own_rate(frame).pivot_table("loss", ["judge", "seed"], "quantizer", sort=False)
    records = []
    for judge, losses in table.groupby(level="judge", sort=False):
        gap = (losses[PAPER] - losses[FULL]).mean()
        for quantizer in losses.dropna(axis=1, how="all").columns:
            std = float((losses[quantizer] - losses[FULL]).std())
            compared = paired(losses[quantizer], losses[FULL])
            records.append(
                {
                    "judge": judge,
                    "quantizer": quantizer,
                    "loss": losses[quantizer].mean(),
                    **compared,
                    "std": std,
                    "gap_ratio": gap / std if std else float("nan"),
                    "detectable": detectable(std, int(compared["seeds"])),
                }
            )
    return pd.DataFrame(records)


def slower(frame: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Differences to 32 bits at the judge's own rate, in steps.

    Args:
        frame: rows of `run_all` of `trials`.
        others: rows of `run_all` of `lengths`. Judges without any are left out.

    Returns:
        The columns of `benchmarks.blind.equivalence.in_steps`.
    """
    own = at_own_rate(frame)
    own = own[own["judge"].isin(others["judge"])].assign(length=1.0)
    whole = others["judge"].map({name: work.steps for name, work in JUDGES.items()})
    both = pd.concat([own, others.assign(length=others["steps"] / whole)])
    return in_steps(both.assign(factor=1.0))


def parameters(frame: pd.DataFrame) -> dict[str, float]:
    """Number of parameters of each judge, from the 8 bytes that Adam keeps of each in 32 bits."""
    sizes = frame[frame["quantizer"] == FULL].groupby("judge")["state_mib"].first()
    return {str(judge): mib * 2**20 / 8 for judge, mib in sizes.items()}


def page(frame: pd.DataFrame, others: pd.DataFrame, command: str) -> str:
    """The report on rows of `trials` and of `lengths`."""
    swept, differences = rates(frame), power(frame)
    steps_of = {(row["judge"], row["quantizer"]): row for row in records(slower(frame, others))}
    lines = [
        "# Judges",
        "",
        f"`{command}`",
        "",
        f"torch {torch.__version__}, one thread for each run. Losses are validation losses after "
        "the last step, in the unit of the workload. Differences to 32 bits are taken seed by "
        "seed, on the same weights and batches.",
        "",
        "A judge's learning rate is the best of a sweep for 32-bit AdamW, so that a quantizer "
        "cannot win because it makes steps larger. **Power** is how much larger the difference "
        "of the 4-bit paper's pair is than the standard deviation, over seeds, of a quantizer's "
        "difference. **Detectable** is the difference that a paired t-test at the 5 % level sees "
        "in 80 % of all experiments with as many seeds.",
        "",
        "**Steps** are the per cent of steps by which a quantizer makes training slower, with a "
        "95 % interval: the difference divided by the slope of the loss over log steps, from runs "
        f"in 32 bits of {' and '.join(map(str, CURVE_LENGTHS))} times the length. A quantizer is "
        f"**equivalent** if two one-sided tests at {MARGIN:.0%} of steps say so, and **no worse** "
        "or **worse** if one does; the tests of the table are adjusted together "
        "(Benjamini-Hochberg, 0.05). Steps are not known where the slope's relative standard error "
        "is above 0.2. The unit and the margin are those of the "
        "[blind test](blind/preregistration.md); these runs were made before it was written. "
        "Intervals leave out the error of the slope itself, of 2 to 7 %.",
        "",
        "`docstring-lm` and `minilm` begin every seed at the same trained weights; their seeds "
        "differ in the order of the data. Only the rate is tuned here, and 200 to 400 steps are "
        "less than half of 1 / (1 - beta2): [blind/README.md](blind/README.md) has the presets "
        "with beta1 and weight decay tuned too, from random weights for 2,000 steps.",
        "",
        "![loss by rate, and differences](judges.png)",
        "",
        "## Learning rates of 32-bit AdamW",
        "",
    ]
    steps = {name: work.steps for name, work in JUDGES.items()}
    lines += markdown(
        ("judge", "steps", "rate", "seeds", "loss", "spread"),
        [
            (
                row.judge,
                str(steps[row.judge]),
                f"**{row.lr:g}**" if row.best else f"{row.lr:g}",
                str(row.seeds),
                f"{row.mean:.4f}",
                "one seed" if row.seeds == 1 else f"{row.std:.4f}",
            )
            for row in swept.itertuples()
        ],
    )
    lines += ["", "## At the best rate", ""]
    seconds = frame[frame["quantizer"] == FULL].groupby("judge")["seconds"].median()
    lines += markdown(
        ("judge", "quantizer", "seeds", "loss", "minus 32 bits", "95 %", "std", "power",
         "detectable", "steps", "outcome"),
        [
            (
                row.judge,
                row.quantizer,
                str(row.seeds),
                f"{row.loss:.4f}",
                f"{row.difference:+.4f}",
                f"{row.low:+.4f} to {row.high:+.4f}",
                f"{row.std:.4f}",
                f"{row.gap_ratio:.1f}",
                f"{row.detectable:.4f}",
                percent(steps_of.get((row.judge, row.quantizer))),
                steps_of.get((row.judge, row.quantizer), {}).get("outcome", ""),
            )
            for row in differences[differences["quantizer"] != FULL].itertuples()
        ],
    )  # fmt: skip
    absent = [name for name in JUDGES if name not in set(frame["judge"])]
    if absent:
        lines += ["", f"Not measured in this report: {', '.join(absent)}."]
    lines += [
        "",
        "A run of 32-bit AdamW took, on one core of a machine that was shared, "
        + ", ".join(f"{value:.0f} s ({name})" for name, value in seconds.items())
        + ".",
    ]
    return "\n".join(lines) + "\n"


def draw(frame: pd.DataFrame, path: Path) -> None:
    """Write a PNG: loss by rate on top, differences of each seed below, a column per judge."""
    names = list(dict.fromkeys(frame["judge"]))
    figure = Figure(figsize=(3.4 * len(names), 6.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, len(names), squeeze=False)
    swept = rates(frame)
    for column, name in enumerate(names):
        top, below = panels[0, column], panels[1, column]
        part = swept[swept["judge"] == name]
        top.errorbar(part["lr"], part["mean"], part["std"], marker="o", color="#4269d0", capsize=3)
        top.axvline(JUDGES[name].lr, color="#9498a0", linewidth=1, linestyle="--")
        top.set_xscale("log")
        top.set_xticks(part["lr"], [f"{lr:g}" for lr in part["lr"]], rotation=40)
        top.minorticks_off()
        top.set_title(f"{name}, {JUDGES[name].steps} steps")
        top.set_xlabel("learning rate")
        rows = frame[(frame["judge"] == name) & (frame["lr"] == JUDGES[name].lr)]
        table = rows.pivot_table("loss", "seed", "quantizer", sort=False)
        others = [q for q in (*KNOWN, *FEWER) if q != FULL and q in table]
        for place, quantizer in enumerate(others):
            difference = table[quantizer] - table[FULL]
            below.plot(difference, [place] * len(difference), "o", alpha=0.6, color="#4269d0")
        below.axvline(0, color="black", linewidth=0.8)
        below.locator_params(axis="x", nbins=4)
        below.set_yticks(range(len(others)), others if column == 0 else [""] * len(others))
        below.set_ylim(len(others) - 0.5, -0.5)
        below.set_xlabel("loss minus 32 bits, each seed")
    panels[0, 0].set_ylabel("validation loss")
    figure.savefig(path, format="png", dpi=110)


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judges", description=__doc__)
    parser.add_argument("judge", nargs="*", default=list(JUDGES), metavar="JUDGE",
                        help=f"any of {', '.join(JUDGES)} (default: all)")  # fmt: skip
    parser.add_argument("--workers", type=count, help="processes (default: one per core)")
    parser.add_argument("--runs", type=Path, default=Path("runs/trials"), help="finished trials")
    parser.add_argument("--out", type=Path, default=Path("reports"), help="folder of the results")
    options = parser.parse_args(argv)
    among(parser, "judge", options.judge, list(JUDGES))
    out = output_folder(options.out)
    frames = []
    for report, of in ((out / JUDGED.name, trials), (out / LENGTHS.name, lengths)):
        plan = [trial for name in options.judge for trial in of(name)]
        restore(report, options.runs)
        frame = run_all(plan, options.runs, workers=options.workers or 0)
        frame = in_order(frame.assign(key=[trial.key for trial in plan]), report)
        with replacing(report) as temporary:
            frame.to_csv(temporary, index=False)
        frames.append(frame)
    frame, others = frames
    with replacing(out / "judges.png") as temporary:
        draw(frame, temporary)
    write_report(out / "judges.md", page(frame, others, command_line("benchmarks.judges", argv)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
