"""The tables of training with the whole model memory in low precision."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pandas as pd

from reproduction import tuned_losses
from reproduction.claim import Claim
from reproduction.committed import within
from reproduction.context import Context
from reproduction.differences import Difference
from reproduction.exhibit import Frames
from reproduction.numbers import interval, percent
from reproduction.report_file import closed

STUDY = "lpmm-sgdm"
"""Name of the study in `reproduction.tuned_losses`."""
COMMAND = closed("python -m benchmarks.lpmm digits stdlib-lm-tiny")
HEADLINE = closed("python -m benchmarks.lpmm stdlib-lm --headline")
FULL, WIDTHS = 32, (12, 10, 8)
NEAREST, STOCHASTIC = "nearest", "stochastic"
UNTUNED = "The learning rate was not tuned, and is the same for all runs."
"""Sentences of pages on the runs of `ablation`."""
TUNED = (
    "Every run takes as many steps, of N micro-batches of two texts; the rate of each N is the "
    "best of a sweep for full precision."
)
"""Sentences of pages on the runs of `tuned`."""
SMALL = 0.25
"""Largest small loss, as a share of the loss of rounding to nearest."""
TENTH = 0.1
"""Smaller losses count as nothing, as a share of 8 bits rounded to nearest."""
WITHIN = 2.0
"""Largest difference of equal losses, in standard deviations over seeds."""


def tuned(context: Context) -> pd.DataFrame:
    """The summary of the runs at the best rates of full precision."""
    runs = tuned_losses.runs(context, STUDY)
    full = runs["quantizer"] == tuned_losses.FULL
    parts = runs["quantizer"].where(~full, f"{FULL} ").str.split(" ", expand=True)
    return summary(
        pd.DataFrame(
            {"workload": runs["judge"], "parameters": parts[0].astype(int), "rounding": parts[1],
             "N": runs["N"], "seed": runs["seed"], "loss": runs["loss"]}
        )
    )  # fmt: skip


def ablation(context: Context) -> pd.DataFrame:
    """The summary of the runs at one rate over the same data; see `summary`."""
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
        These, and over seeds: `seeds`, their number; `loss`, the mean, and `error`, its standard
        error; `behind`, the mean difference from full precision of the same N and seed, with `low`
        and `high`, the ends of its 95 % interval, its standard error `behind_error`, and
        `detectable`, the detectable difference for as many seeds; and `spread`, the standard
        deviation of full precision over seeds. A loss that is not a number is infinite.
    """
    frame = frame.assign(rounding=frame["rounding"].fillna(""))
    frame["loss"] = frame["loss"].fillna(math.inf)
    keys = ["workload", "N"]
    full = frame[frame["parameters"] == FULL]
    frame = frame.join(full.set_index([*keys, "seed"])["loss"].rename("full"), on=[*keys, "seed"])
    frame["behind"] = frame["loss"] - frame["full"]
    grouped = frame.groupby(["workload", "parameters", "rounding", "N"], sort=False)
    intervals = [interval(behind.tolist()) for _, behind in grouped["behind"]]
    means = grouped[["loss"]].mean()
    means = means.assign(
        error=grouped["loss"].sem(),
        seeds=grouped.size(),
        behind=[interval_of.mean for interval_of in intervals],
        low=[interval_of.low for interval_of in intervals],
        high=[interval_of.high for interval_of in intervals],
        behind_error=[interval_of.error for interval_of in intervals],
        detectable=[interval_of.detectable for interval_of in intervals],
    ).reset_index()
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
        """The N with the smallest loss, rounded stochastically; `several` leaves out N = 1."""
        return min(self.ns[several:], key=lambda n: self.behind(bits, n=n)[0])

    def behind(self, bits: int, rounding: str = STOCHASTIC, n: int = 1) -> tuple[float, float]:
        """Loss of a run against full precision of the same N, and its standard error."""
        return self.of("behind", bits, rounding, n), self.of("behind_error", bits, rounding, n)

    def nothing(self) -> float:
        """Less than this a run loses nothing; see `TENTH`."""
        return TENTH * self.of("behind", 8, NEAREST)

    def gain(self, bits: int) -> tuple[float, float]:
        """Gain of several micro-batches at best over one, and its standard error."""
        single, several = self.behind(bits), self.behind(bits, n=self.best(bits, several=True))
        return single[0] - several[0], math.hypot(single[1], several[1])

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
    """Claim: a width has the final loss of full precision; see `reproduction.committed.within`."""
    low, high = (runs.of(end, bits) for end in ("low", "high"))
    return Claim(
        f"{text} ({runs.workload}, {runs.seeds} seeds).",
        within(low, high, runs.loss(FULL)),
        f"Behind full precision {runs.of('behind', bits):+.4f} ({low:+.4f} to {high:+.4f}), of "
        f"{runs.loss(FULL):.4f}.",
    )


def easy(runs: Runs) -> Difference:
    """True if 8-bit parameters lose nothing on the task, as on CIFAR10 in the annex."""
    behind, spread = runs.of("behind", 8), runs.of("spread", FULL)
    return Difference(
        f"On {runs.workload} 8 bits rounded stochastically end {behind:+.4f} from full precision "
        f"(a standard deviation over seeds is {spread:.4f}): nothing is left for more bits, or for "
        "micro-batches, to win. The paper's annex finds the same of CIFAR10, where 8-bit "
        "parameters are enough, and has ImageNet need 12.",
        bool(abs(behind) <= WITHIN * spread),
        runs.workload,
    )


def alike(text: str, runs: Runs, bits: int, n: int = 1) -> Claim:
    """Claim: a width loses less than a tenth of the loss of 8 bits with rounding to nearest."""
    low, high = (runs.of(end, bits, n=n) for end in ("low", "high"))
    nothing = runs.nothing()
    return Claim(
        f"{text} ({runs.workload}, {runs.seeds} seeds).",
        high < nothing if high < nothing or low > nothing else (),
        f"Behind full precision {runs.of('behind', bits, n=n):+.4f} ({low:+.4f} to {high:+.4f}), "
        f"of {runs.loss(FULL, n=n):.4f}; 8 bits to nearest "
        f"{runs.of('behind', 8, NEAREST):+.4f}.",
    )


Gain = tuple[float, float]
"""A number and its standard error."""


def apart(a: Gain, b: Gain) -> Gain:
    """The difference of two numbers."""
    return a[0] - b[0], math.hypot(a[1], b[1])


def all_above(numbers: Iterable[Gain]) -> bool | tuple[()]:
    """True if all lie above 0 by more than two standard errors; empty if one can lie either way."""
    values = list(numbers)
    if any(value <= -WITHIN * error for value, error in values):
        return False
    return True if all(value > WITHIN * error for value, error in values) else ()


def power(runs: Runs) -> str:
    """Detectable difference over seeds, in a sentence."""
    widest = max(runs.of("detectable", bits, n=n) for bits in WIDTHS for n in runs.ns)
    return (
        f"Over {runs.seeds} seeds {widest:.4f} nats per byte are seen with a probability of 80 % "
        f"(paired t-test at 5 %), where it is least certain; 8 bits to nearest lose "
        f"{runs.of('behind', 8, NEAREST):.4f}."
    )


def easier(runs: Runs) -> Difference:
    """The cause: the loss of 8 bits is visible here, and yet much smaller than on ImageNet."""
    behind, error = runs.behind(8)
    low = runs.of("low", 8)
    share = behind / runs.of("behind", 8, NEAREST)
    return Difference(
        f"On {runs.workload} 8 bits rounded stochastically end {behind:+.4f} ± {error:.4f} from "
        f"full precision, {percent(share)} of what rounding to nearest loses, where the paper's "
        "lose 5 points on ImageNet: what more bits and micro-batches can win is small here. How "
        "much 8 bits lose depends on the task in the paper too: its annex finds 8-bit parameters "
        "enough for CIFAR10, and has ImageNet need 12.",
        low > 0 and share < SMALL,
        runs.workload,
    )


def quantity(runs: Runs) -> str:
    """Name of the losses of a workload."""
    return f"validation loss, {runs.workload}"


def lost(runs: Runs) -> str:
    """Name of the losses behind full precision."""
    return f"validation loss behind full precision, {runs.workload}"


def summaries(frames: Frames) -> list[Runs]:
    """Those of every frame."""
    return [runs for frame in frames.values() for runs in each(frame)]
