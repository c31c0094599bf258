"""Losses at the best rate of each optimizer in 32 bits, compared seed by seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pandas as pd

from reproduction import committed
from reproduction.claim import Claim
from reproduction.context import Context
from reproduction.numbers import Interval, interval, percent
from reproduction.proxy_metrics import ProxyMetric

FULL = committed.FULL
POINT = ["lr", "beta1", "beta2", "eps"]
"""Hyperparameters of a run."""


def command(study: str) -> str:
    """Command for the table of a study."""
    return f"python -m benchmarks {study} --workers 1"


def runs(context: Context, study: str) -> pd.DataFrame:
    """The runs of a study at the best rates.

    Returns:
        `judge`; `group`, a task and the optimizer with the tuned rate; `optimizer`; `quantizer`,
        `FULL` for none; `N`; the columns of `POINT`; `steps`, `seed`; `loss`, infinite if it is not
        a number; `unstable`.
    """
    frame = context.table(f"losses/{study}.csv", command(study))
    frame["loss"] = frame["loss"].fillna(math.inf)
    return frame[frame["best"]].reset_index(drop=True)


@dataclass(frozen=True)
class Beside:
    """A run and its baseline.

    Attributes:
        base: mean loss of the baseline.
        apart: the differences to it, seed by seed.
        seeds: how many.
    """

    base: float
    apart: Interval
    seeds: int

    @property
    def shown(self) -> tuple[float, float]:
        """The loss, and half of the 95 % interval of its difference to the baseline."""
        return self.base + self.apart.mean, self.half

    @property
    def behind(self) -> tuple[float, float]:
        """Difference to the baseline, and half of its 95 % interval."""
        return self.apart.mean, self.half

    @property
    def half(self) -> float:
        """Half of the 95 % interval."""
        return self.apart.high - self.apart.mean if math.isfinite(self.apart.mean) else math.inf

    @property
    def said(self) -> str:
        """The difference in words."""
        of = self.apart
        return f"{of.mean:+.4f} ({of.low:+.4f} to {of.high:+.4f}), of {self.base:.4f}."

    def alike(self, name: str, workload: str, base: str = "32 bits do") -> Claim:
        """Claim of a final loss equal to the baseline's; see `reproduction.committed.within`."""
        return Claim(
            f"{name} ends within {committed.margin(self.base):.2g} nats of where {base}, at the "
            f"best "
            f"rate ({workload}, {self.seeds} seeds).",
            committed.within(self.apart.low, self.apart.high, self.base),
            self.said,
        )


def by_seed(
    frame: pd.DataFrame, group: str, quantizer: str = FULL, optimizer: str = ""
) -> pd.Series[float]:
    """The losses of one row of a group, indexed by seed.

    Args:
        frame: result of `runs`.
        group: its group.
        quantizer: its quantizer.
        optimizer: its optimizer; that of the group if empty.
    """
    rows = frame[
        (frame["group"] == group)
        & (frame["quantizer"] == quantizer)
        & (frame["optimizer"] == (optimizer or group.split(", ")[-1]))
    ]
    if rows.empty or rows["seed"].duplicated().any():
        raise LookupError(f"{group}, {optimizer} {quantizer}: {len(rows)} runs")
    return rows.set_index("seed")["loss"]


def beside(ours: pd.Series[float], base: pd.Series[float]) -> Beside:
    """Losses beside those of a baseline, on their common seeds."""
    pairs = pd.DataFrame({"ours": ours, "base": base}).dropna()
    apart = (pairs["ours"] - pairs["base"]).tolist()
    return Beside(float(pairs["base"].mean()), interval(apart), len(pairs))


def proxy(task: str, workload: str, rows: Mapping[str, Beside]) -> ProxyMetric:
    """Validation losses in the place of a paper's metric."""
    shown = {name: row.shown for name, row in rows.items()}
    margin = min(committed.margin(row.base) for row in rows.values())
    return ProxyMetric(task, f"validation loss, {workload}", shown, margin=margin)


def table(rows: Mapping[str, Beside]) -> pd.DataFrame:
    """The rows with their spread over seeds and detectable difference."""
    return pd.DataFrame(
        {"row": name, "seeds": row.seeds, "loss": row.shown[0], "difference": row.apart.mean,
         "low": row.apart.low, "high": row.apart.high, "std": row.apart.std,
         "detectable": row.apart.detectable}
        for name, row in rows.items()
    )  # fmt: skip


def power(rows: Iterable[Beside], paper: pd.DataFrame, quantity: str) -> str:
    """Detectable difference over seeds beside the paper's effect, in a sentence.

    Args:
        rows: comparisons with a baseline.
        paper: of `reproduction.claim.published`.
        quantity: its quantity; the effect is the largest relative difference between rows.
    """
    told = [row for row in rows if row.apart.std > 0]
    widest = max(told, key=lambda row: row.apart.detectable / row.base)
    seen = percent(widest.apart.detectable / widest.base)
    values = paper[paper["quantity"] == quantity]["paper"]
    effect = 1 - float(values.min()) / float(values.max())
    return (
        f"A paired difference has a standard deviation of {widest.apart.std:.4f} over "
        f"{widest.seeds} seeds where it is largest, so that {seen} of a loss are seen with a "
        f"probability of 80 % (5 % level); the paper's rows are {percent(effect)} of their metric "
        "apart."
    )
