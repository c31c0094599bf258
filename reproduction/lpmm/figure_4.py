"""Figure 4: convergence with deterministic and with stochastic rounding."""

from __future__ import annotations

import itertools
import math

import pandas as pd
from matplotlib.figure import Figure
from scipy import stats

from qmaps import figures
from reproduction.claim import Claim
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.lpmm import _ablation
from reproduction.lpmm._ablation import NEAREST, STOCHASTIC
from reproduction.lpmm._underflow import COMMAND, PRINTED, WORKLOADS, tables
from reproduction.numbers import LEVEL, MARGIN

APART = 0.05
"""Smallest relative difference of losses called apart."""


def build(context: Context) -> Frames:
    """The committed curves of one micro-batch a step, and the ends of several seeds."""
    curves = tables(context, "convergence.csv")
    return {
        "curves": curves[curves["setting"].isin([NEAREST, STOCHASTIC])],
        "runs": _ablation.ablation(context),
    }


def ends(curves: pd.DataFrame) -> pd.DataFrame:
    """Final losses by width.

    Returns:
        `width`; `nearest` and `stochastic`, the last validation losses; `apart_after`, the first
        step from which on the smoothed training loss of rounding to nearest stays behind by more
        than `APART` of the other's, infinite if it does not end so.
    """
    rows = []
    for width, part in curves.groupby("width", sort=False):
        val, train = (part[part["split"] == split] for split in ("val", "train"))
        last = val.pivot_table(index="step", columns="setting", values="loss").iloc[-1]
        smooth = train.pivot_table(index="step", columns="setting", values="smoothed")
        behind = smooth[NEAREST] > (1 + APART) * smooth[STOCHASTIC]
        together = behind.index[~behind]
        after = behind.index[behind & (behind.index > (together.max() if len(together) else -1))]
        rows.append(
            {
                "width": width,
                NEAREST: float(last[NEAREST]),
                STOCHASTIC: float(last[STOCHASTIC]),
                "apart_after": float(after.min()) if len(after) else math.inf,
            }
        )
    return pd.DataFrame(rows)


def find(frames: Frames) -> Finding:
    """Compare the ends of the curves, and the steps where they part."""
    curves = frames["curves"]
    parts = {str(name): ends(rows) for name, rows in curves.groupby("workload", sort=False)}
    statements, differences = [], []
    for runs in _ablation.each(frames["runs"]):
        statements += [_behind(runs, bits) for bits in _ablation.WIDTHS]
        statements += _parting(runs.workload, parts[runs.workload], curves["step"].max())
        differences.append(_ablation.easy(runs))
    return Finding(
        statements=statements,
        differences=differences,
        why="Behind: the whole 95 % interval over seeds lies above 0; an interval that holds 0 "
        "and more "
        f"than {MARGIN:g} nats cannot tell. The curves are those of "
        f"{_seeds(curves)}, both roundings of a seed on the same batches; they are "
        f"apart where the means of the smoothed training losses differ by more than {APART:.0%}. "
        f"{_ablation.UNTUNED}",
        tables={"ends": pd.concat(parts, names=["workload"]).reset_index(0)},
    )


def _seeds(curves: pd.DataFrame) -> str:
    """Numbers of seeds by workload, in a phrase."""
    seeds = curves.groupby("workload", sort=False)["seed"].nunique()
    return " and ".join(f"{n} seed{'s' * (n > 1)} on {name}" for name, n in seeds.items())


def _behind(runs: _ablation.Runs, bits: int) -> Claim:
    """The cause: the cost of rounding to nearest is below the resolution of a few seeds."""
    apart, error = _ablation.apart(runs.behind(bits, NEAREST), runs.behind(bits))
    half = float(stats.t.ppf(1 - LEVEL / 2, runs.seeds - 1)) * error
    low, high = apart - half, apart + half
    return Claim(
        f"Rounded to nearest, runs of {bits} bits end behind stochastic rounding "
        f"({runs.workload}, {runs.seeds} seeds).",
        low > 0 if low > 0 or high < MARGIN else (),
        f"Final validation loss {runs.said(bits, NEAREST)} against {runs.said(bits)}, "
        f"{apart:+.4f} ({low:+.4f} to {high:+.4f}).",
    )


def _parting(workload: str, table: pd.DataFrame, last: float) -> list[Claim]:
    """Steps where the curves part."""
    after = table["apart_after"].tolist()
    parts = ", ".join(
        f"{width} " + (f"step {step:.0f}" if math.isfinite(step) else "not at all")
        for width, step in zip(table["width"], after, strict=True)
    )
    return [
        Claim(
            f"With 12 bits the curves lie on each other in the early stage ({workload}).",
            after[0] > last / 5,
            f"They part for good: {parts}.",
        ),
        Claim(
            f"With fewer bits they part earlier ({workload}).",
            all(wide >= narrow for wide, narrow in itertools.pairwise(after))
            and math.isfinite(after[-1]),
            f"They part for good: {parts}.",
        ),
    ]


def pictures(frames: Frames) -> dict[str, Figure]:
    """One for each workload and width, with the difference to stochastic rounding."""
    drawn = {}
    for (workload, width), part in frames["curves"].groupby(["workload", "width"], sort=False):
        rows = part.sort_values("setting", ascending=False, kind="stable")  # stochastic is first
        keys = ["split", "seed", "step"]
        first = rows[rows["setting"] == STOCHASTIC].set_index(keys)["loss"]
        rows = rows.join(first.rename("first"), on=keys)
        names = rows["setting"].replace(PRINTED)
        rows = rows.assign(difference=rows["loss"] - rows["first"], run=f"{width}, " + names)
        drawn[f"figure-4-{workload}-{str(width).replace(' ', '-')}"] = figures.loss_curves(rows)
    return drawn


EXHIBIT = Exhibit(
    name="figure-4",
    covers=("Figure 4",),
    title="Convergence with rounding to nearest and with stochastic rounding",
    needs=Needs.REPORTS,
    build=build,
    find=find,
    draw=pictures,
    captions={
        f"figure-4-{name}-{bits}-bits": f"{name}, {bits}-bit parameters. Several seeds are a mean "
        "in a band from the lowest to the highest, of smoothed training losses; of one seed the "
        "training losses are shown faintly, and over them the same smoothed. Deterministic: "
        "rounded to nearest."
        for name in WORKLOADS
        for bits in _ablation.WIDTHS
    },
    command=COMMAND,
)
