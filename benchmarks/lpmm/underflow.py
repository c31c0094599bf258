"""Updates that are too small for their codes, over training: the figures of LPMM.

``python -m benchmarks.lpmm.underflow digits`` trains with parameters of 12, 10 and 8 bits (8-bit
gradients and momentum), rounded to nearest, stochastically, and stochastically with micro-batches,
and runs the optimizer on a convex quadratic beside the bounds of theory. Curves of one micro-batch
a step are of five seeds, all else of one. It goes on after the last
run that ended and writes reports/lpmm/underflow.{csv,md}, figures, and a table of what each shows.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import torch

from benchmarks.command import command_line, count, one_line_errors
from benchmarks.lpmm.__main__ import Contender
from benchmarks.lpmm.quadratic import Case, beside_bound
from benchmarks.lpmm.update_sizes import Underflow, watched
from benchmarks.markdown import markdown
from qmaps.figures import loss_curves, save
from qmaps.figures.loss_curves import SEVERAL
from qmaps.lab import workloads
from qmaps.lab.workloads import Workload, train
from qmaps.lab.workloads.training import Hook
from qmaps.storage.files import output_folder, replacing, write_text
from reproduction import figures
from reproduction.report_file import write_report

BITS = (12, 10, 8)
WINDOWS = 25
"""Points of a curve of bin changes; each is a mean."""
SMOOTHED = 15
"""Steps that the smoothed training loss is a mean of."""
LAYERS = 4
"""Rows of the figure of bin changes: the largest matrices."""
SEEDS = 5
"""Of the curves of one micro-batch a step; all else is of the first of them."""
EVERY = 5
"""Steps of the training loss between the points that are kept."""
DIGITS = "%.5g"
"""How numbers of the tables of figures are written."""

GRADS, MOMENTUM = "B2048/linear0@8s+sr", "B2048/DE@8s+sr"
HEAD = ("parameters", "rounding", "N", "asked (delta)", "moved (delta)", "underflow", "loss")


def contenders(n: int) -> list[Contender]:
    """Each width, to nearest, stochastic, and stochastic with `n` micro-batches a step."""
    return [
        contender
        for bits in BITS
        for contender in (Contender(bits, False), Contender(bits), Contender(bits, n=n))
    ]


def setting(contender: Contender) -> str:
    """The legend's words for how a run rounds."""
    return contender.rounding + (f", N = {contender.n}" if contender.n > 1 else "")


def kept(path: Path, make: Callable[[], dict[str, pd.DataFrame]]) -> dict[str, pd.DataFrame]:
    """The frames that an earlier call left in a folder, or new ones."""
    done = path / "done"
    if not done.exists():
        output_folder(path)
        for name, frame in make().items():
            with replacing(path / f"{name}.csv") as temporary:
                frame.to_csv(temporary, index=False)
        write_text(done, "")
    return {file.stem: pd.read_csv(file) for file in sorted(path.glob("*.csv"))}


def setting_columns(contender: Contender) -> dict[str, object]:
    """Columns that identify a run."""
    return {"width": f"{contender.bits} bits", "setting": setting(contender), "N": contender.n}


def trained(
    workload: Workload, contender: Contender, steps: int, seed: int = 0, hooks: Sequence[Hook] = ()
) -> pd.DataFrame:
    """The losses of one training run."""
    with tempfile.TemporaryDirectory() as folder:
        run = train(
            workload,
            contender.make,
            out=folder,
            label=contender.label,
            seed=seed,
            steps=steps,
            validate_every=max(1, steps // 10),
            hooks=hooks,
        )
    return pd.DataFrame(run.losses).assign(seed=seed, **setting_columns(contender))


def observed(workload: Workload, contender: Contender, steps: int) -> dict[str, pd.DataFrame]:
    """One training run: its losses, what became of its updates, and how these are distributed.

    The distribution is that of the middle fifth of training. Steps count micro-batches.
    """
    underflow = Underflow()
    losses = trained(
        workload,
        contender,
        steps,
        hooks=[lambda *_: watched(underflow)],
    )
    n, about = contender.n, setting_columns(contender)
    ratios = underflow.ratios().assign(**about)
    ratios["step"] *= n
    middle = range(2 * steps // (5 * n), 3 * steps // (5 * n) + 1)
    distribution = underflow.distribution(middle).assign(**about)
    return {"ratios": ratios, "distribution": distribution, "losses": losses}


def bin_changes(ratios: pd.DataFrame, steps: int) -> pd.DataFrame:
    """The ratios of the largest matrices, averaged over windows."""
    matrices = ratios[ratios["parameter"].str.endswith("weight")]
    sizes = matrices.groupby("parameter", sort=False)["numel"].max()
    largest = set(sizes.nlargest(LAYERS).index)
    part = matrices[matrices["parameter"].isin(largest)].copy()
    window = max(int(part["N"].max()), steps // WINDOWS)
    part["step"] = -(-part["step"] // window) * window
    keys = ["parameter", "width", "setting", "step"]
    return part.groupby(keys, sort=False)["bin_change"].mean().reset_index()


def histograms(distribution: pd.DataFrame, ratios: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The distribution of the largest parameter under stochastic rounding, and its name.

    A width stands where the figure has a parameter.
    """
    largest = str(ratios.loc[ratios["numel"].idxmax(), "parameter"])
    part = distribution[
        (distribution["parameter"] == largest) & distribution["setting"].str.startswith("stoch")
    ]
    return part.assign(parameter=part["width"], setting="N = " + part["N"].astype(str)), largest


def curves(losses: pd.DataFrame) -> pd.DataFrame:
    """Losses as the figure has them."""
    part = losses[losses["metric"] == "loss"].rename(columns={"value": "loss"})
    frame = part.assign(run=part["width"] + ", " + part["setting"])
    keys = frame.groupby(["run", "seed", "split"], sort=False)["loss"]
    frame["smoothed"] = keys.transform(lambda loss: loss.rolling(SMOOTHED, 1).mean())
    shown = (frame["split"] == "val") | (frame["step"] % EVERY == 0) | (frame["step"] == 1)
    return frame[shown].drop(columns=["metric", "N"])


def thinned(beside: pd.DataFrame) -> pd.DataFrame:
    """The bound and the runs beside it at steps whose distance grows, the last among them."""
    last = int(beside["step"].max())
    chosen = {min(last, round(1.15**power)) for power in range(60)}
    return beside[beside["step"].isin(chosen)]


def summary(ratios: pd.DataFrame, losses: pd.DataFrame, steps: int) -> pd.DataFrame:
    """One row per run: means over the second half of training and over elements.

    Returns:
        `width`, `setting`, `N`; `wanted_change` and `bin_change` in units of delta; `underflow`,
        the share of updates that are not 0 below delta / 2; `loss`, the last of validation.
    """
    keys = ["width", "setting", "N"]
    late = ratios[ratios["step"] > steps // 2].copy()
    late["below"] = late["underflow"].fillna(0) * late["updated"]
    for name in ("wanted_change", "bin_change"):
        late[name] *= late["numel"]
    columns = ["wanted_change", "bin_change", "below", "numel", "updated"]
    totals = late.groupby(keys, sort=False)[columns].sum()
    table = pd.DataFrame(
        {
            "wanted_change": totals["wanted_change"] / totals["numel"],
            "bin_change": totals["bin_change"] / totals["numel"],
            "underflow": totals["below"] / totals["updated"],
        }
    )
    last = losses[(losses["split"] == "val") & (losses["metric"] == "loss")]
    return table.join(last.groupby(keys, sort=False)["value"].last().rename("loss")).reset_index()


def page(table: pd.DataFrame, workload: str, largest: str, command: str) -> str:
    """The report."""
    cells = [
        [
            row["width"],
            row["setting"].split(",")[0],
            str(row["N"]),
            f"{row['wanted_change']:.3g}",
            f"{row['bin_change']:.3g}",
            f"{row['underflow']:.1%}",
            f"{row['loss']:.4f}",
        ]
        for row in table.to_dict("records")
    ]
    lines = [
        f"# Small updates in low precision: {workload}",
        "",
        f"`{command}`",
        "",
        f"torch {torch.__version__}, one seed. Gradients and momentum have 8 bits; delta is the "
        "distance between codes of a parameter. Asked and moved: mean size of the updates that the "
        "rule asks for and of those that became of them, over all parameters and the second half "
        "of training; a parameter also moves a little where its scale changes. Underflow: share of "
        "updates below delta / 2, which rounding to nearest loses. Loss: validation, at the end. N "
        "micro-batches are summed; all runs see the same data at the same learning rate, "
        "that of the ablation.",
        "",
        *markdown(HEAD, cells),
        "",
        "![](bin-changes.png)",
        "",
        "Bin change ratio over training (micro-batches), the largest layers (LPMM, figure 2).",
        "",
        "![](update-histogram.png)",
        "",
        f"Updates of {largest} in units of delta, the middle fifth of training, stochastic (LPMM, "
        "figure 3).",
        "",
        "![](convergence.png)",
        "",
        f"Convergence (LPMM, figure 4). From {SEVERAL} seeds on a line is the mean over them, in a "
        "band from the lowest to the highest.",
        "",
        "![](bound.png)",
        "",
        "A convex quadratic of 64 elements beside the bound of LPMM's theorem 1, and of the 4-bit "
        "paper's appendix H where the momentum alone is in low precision.",
    ]
    return "\n".join(lines) + "\n"


def bounds(steps: int, n: int) -> pd.DataFrame:
    """Runs on the quadratic beside the bounds."""
    cases = [Case(f"B2048/linear0@{bits}s+sr", GRADS, MOMENTUM) for bits in (12, 8)]
    cases.append(Case("B2048/linear0@8s+sr", GRADS, MOMENTUM, n))
    cases.append(Case(None, "", "B128/DE@4s+sr"))
    return pd.concat([beside_bound(case, steps=steps) for case in cases], ignore_index=True)


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.lpmm.underflow", description=__doc__
    )
    parser.add_argument("workload", choices=["digits", "stdlib-lm-tiny", "stdlib-lm"])
    parser.add_argument("--micro-batches", type=int, default=4, help="N")
    parser.add_argument("--steps", type=int, help="micro-batches (default: the workload's)")
    parser.add_argument("--seeds", type=count, default=SEEDS, help="of the curves")
    parser.add_argument("--runs", type=Path, default=Path("runs/lpmm-underflow"), help="kept runs")
    parser.add_argument("--out", type=Path, default=Path("reports/lpmm"), help="of the results")
    options = parser.parse_args(argv)
    n = options.micro_batches
    output_folder(options.out)
    work = workloads.get(options.workload)
    steps = work.steps if options.steps is None else options.steps
    found: list[dict[str, pd.DataFrame]] = []
    more: list[pd.DataFrame] = []
    chosen = contenders(n)
    for number, contender in enumerate(chosen, 1):
        name = re.sub(r"\W+", "-", f"{work.name} {steps} of {n} {contender.label}".lower())
        found.append(
            kept(options.runs / name, lambda c=contender: observed(work, c, steps))  # type: ignore[misc]
        )
        seeds = range(1, options.seeds if contender.n == 1 else 1)
        more += [
            kept(
                options.runs / f"{name}-seed-{seed}",
                lambda c=contender, s=seed: {"losses": trained(work, c, steps, s)},  # type: ignore[misc]
            )["losses"]
            for seed in seeds
        ]
        print(f"{number}/{len(chosen)} {work.name} {contender.label}", flush=True)
    joined = {
        name: pd.concat([frames[name] for frames in found], ignore_index=True)
        for name in ("ratios", "distribution", "losses")
    }
    beside = kept(
        options.runs / f"bound-{min(steps, 300)}-{n}",
        lambda: {"bound": bounds(min(steps, 300), n)},
    )["bound"]
    ratios, losses = joined["ratios"], joined["losses"]
    distribution, largest = histograms(joined["distribution"], ratios)
    shown = {
        "bin-changes": (figures.bin_changes, bin_changes(ratios, steps)),
        "update-histogram": (figures.update_histogram, distribution.drop(columns="count")),
        "convergence": (
            loss_curves,
            curves(pd.concat([losses, *more], ignore_index=True)).assign(unit=work.unit),
        ),
        "bound": (figures.convergence_bound, thinned(beside)),
    }
    for name, (draw, frame) in shown.items():
        save(draw(frame), options.out / f"{name}.png")
        with replacing(options.out / f"{name}.csv") as temporary:
            frame.to_csv(temporary, index=False, float_format=DIGITS)
    table = summary(ratios, losses, steps)
    with replacing(options.out / "underflow.csv") as temporary:
        table.to_csv(temporary, index=False)
    command = command_line("benchmarks.lpmm.underflow", argv)
    write_report(options.out / "underflow.md", page(table, work.name, largest, command))
    return 0


if __name__ == "__main__":
    sys.exit(main())
