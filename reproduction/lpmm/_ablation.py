"""The tables of training with the whole model memory in low precision."""

from __future__ import annotations

import math

import pandas as pd

from qmaps.lab.report.claim import Claim
from reproduction.context import Context
from reproduction.differences import Difference
from reproduction.exhibit import Frames

COMMAND = "python -m benchmarks.lpmm digits stdlib-lm-tiny"
HEADLINE = "python -m benchmarks.lpmm stdlib-lm --headline"
FULL, WIDTHS = 32, (12, 10, 8)
NEAREST, STOCHASTIC = "nearest", "stochastic"
UNTUNED = "The learning rate was not tuned, and is the same for all runs."
"""What pages say of these runs."""
WITHIN = 2.0
"""Spreads over seeds within which two losses count as one."""


def ablation(context: Context) -> pd.DataFrame:
    """The summary of the ablation; see `summary`."""
    return summary(context.table("lpmm/ablation.csv", COMMAND))


def headline(context: Context) -> pd.DataFrame:
    """The summary of the long runs."""
    return summary(context.table("lpmm/headline.csv", HEADLINE))


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per workload, width, rounding and N.

    Args:
        frame: `workload`, `parameters` (bits), `rounding` (empty in full precision), `N`, `seed`,
            `loss`.

    Returns:
        These, and over seeds: `seeds`, how many; `loss`, the mean, and `error`, its standard error;
        `behind`, the mean of what each seed loses against full precision of the same N, and
        `spread`, the deviation of that over seeds. A loss that is not a number is infinite.
    """
    frame = frame.assign(rounding=frame["rounding"].fillna(""))
    frame["loss"] = frame["loss"].fillna(math.inf)
    keys = ["workload", "N"]
    full = frame[frame["parameters"] == FULL]
    frame = frame.join(full.set_index([*keys, "seed"])["loss"].rename("full"), on=[*keys, "seed"])
    frame["behind"] = frame["loss"] - frame["full"]
    grouped = frame.groupby(["workload", "parameters", "rounding", "N"], sort=False)
    means = grouped[["loss", "behind"]].mean()
    means = means.assign(error=grouped["loss"].sem(), seeds=grouped.size()).reset_index()
    return means.join(full.groupby(keys)["loss"].std().rename("spread"), on=keys)


class Runs:
    """The summary of one workload.

    Attributes:
        workload: its name.
        ns: numbers of micro-batches of the stochastic runs, ascending.
        seeds: how many of each run.
    """

    def __init__(self, workload: str, rows: pd.DataFrame) -> None:
        self.workload = workload
        self.seeds = int(rows["seeds"].min())
        self._rows = rows.set_index(["parameters", "rounding", "N"])
        stochastic = rows[rows["rounding"] == STOCHASTIC]
        self.ns: list[int] = sorted(stochastic["N"].unique().tolist())

    def of(self, column: str, bits: int, rounding: str = STOCHASTIC, n: int = 1) -> float:
        """A number of one run."""
        return float(self._rows[column][bits, "" if bits == FULL else rounding, n])

    def loss(self, bits: int, rounding: str = STOCHASTIC, n: int = 1) -> float:
        """The mean loss of one run."""
        return self.of("loss", bits, rounding, n)

    def shown(self, bits: int, rounding: str = STOCHASTIC, n: int = 1) -> tuple[float, float]:
        """It, and its standard error."""
        return self.loss(bits, rounding, n), self.of("error", bits, rounding, n)

    def said(self, bits: int, rounding: str = STOCHASTIC, n: int = 1) -> str:
        """It in words."""
        return f"{self.loss(bits, rounding, n):.4f}"

    def best(self, bits: int, *, several: bool = False) -> int:
        """The N of the lowest loss with stochastic rounding; `several` leaves out N = 1."""
        return min(self.ns[several:], key=lambda n: self.loss(bits, n=n))

    def gain(self, bits: int) -> float:
        """What the best number of several micro-batches gains over N = 1."""
        return self.loss(bits) - self.loss(bits, n=self.best(bits, several=True))

    def beside_full(self, bits: int, rounding: str = STOCHASTIC) -> str:
        """A run of N = 1 and full precision in words."""
        return (
            f"{self.said(bits, rounding)} against {self.said(FULL)} ± "
            f"{self.of('spread', FULL):.4f}, {self.of('behind', bits, rounding):+.4f}"
        )


def each(frame: pd.DataFrame) -> list[Runs]:
    """Workload by workload."""
    return [Runs(str(name), rows) for name, rows in frame.groupby("workload", sort=False)]


def matches(text: str, runs: Runs, bits: int) -> Claim:
    """That a width ends as full precision does, or better."""
    within = runs.of("behind", bits) <= WITHIN * runs.of("spread", FULL)
    return Claim(
        f"{text} ({runs.workload}, {runs.seeds} seeds).",
        bool(within),
        f"Final validation loss {runs.beside_full(bits)}.",
    )


def easy(runs: Runs) -> Difference:
    """Whether a task is one whose 8-bit parameters lose nothing, as CIFAR10 in the annex."""
    behind, spread = runs.of("behind", 8), runs.of("spread", FULL)
    return Difference(
        f"On {runs.workload} 8 bits rounded stochastically end {behind:+.4f} from full precision "
        f"(a standard deviation over seeds is {spread:.4f}): nothing is left for more bits, or for "
        "micro-batches, to win. The paper's annex finds the same of CIFAR10, where 8-bit "
        "parameters are enough, and has ImageNet need 12.",
        bool(abs(behind) <= WITHIN * spread),
        runs.workload,
    )


def sums(runs: Runs) -> Difference:
    """Whether micro-batches cost full precision as much."""
    full = {n: runs.loss(FULL, n=n) for n in runs.ns}
    last = max(full)
    return Difference(
        f"On {runs.workload} full precision, which has nothing to win from micro-batches, goes "
        f"from {full[1]:.4f} to {full[last]:.4f} with N = {last}: N summed gradients at one rate "
        "over the same data are steps N times as long and N times as few. That is what sets the "
        "numbers of one N apart from those of another here, where the paper adapts its schedule "
        "to N.",
        bool(all(full[n] > full[1] for n in runs.ns if n > 1)),
        f"[Mm]icro-batches.*{runs.workload}|N = .*{runs.workload}",
    )


def quantity(runs: Runs) -> str:
    """What losses of a workload are called."""
    return f"validation loss, {runs.workload}"


def summaries(frames: Frames) -> list[Runs]:
    """Those of every frame."""
    return [runs for frame in frames.values() for runs in each(frame)]
