"""Tables of other commands, in the papers' terms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
from scipy import stats

from reproduction.claim import Claim
from reproduction.context import Context
from reproduction.numbers import LEVEL, MARGIN, interval, scientific
from reproduction.report_file import closed
from reproduction.tasks import TASKS as WORKLOADS

FULL = "32-bit"
"""AdamW in 32 bits among the runs of all tasks."""
TUNED = closed("python -m benchmarks.tuned")
TASK_RUNS = closed("python -m benchmarks.judges")
RECOMMENDED = closed("python -m benchmarks.recommended lm-tiny docstring-lm minilm")
PREDICTION = closed("python -m benchmarks.prediction")
ABLATIONS = closed("python -m benchmarks.ablations")
BENCH = "python -m benchmarks"
CLOSE = 0.02
"""Largest margin, as a share of a loss."""
LANGUAGE, VISION = "stdlib-lm-tiny", "digits"
"""Workloads in place of the papers' language and image tasks."""
PRETRAINED = "minilm"
"""The workload with pretrained weights."""
Loss = tuple[float, float]
"""A mean loss and its standard error."""


def ablation(context: Context, name: str) -> pd.DataFrame:
    """Stability of training, a row per setting.

    Returns:
        `setting`, `runs`, `failed` (number of failed runs), `unstable` (percent), `loss` (median of
        stable runs), `error` (their standard error, including the effect of hyperparameters).
    """
    frame = context.table(f"ablations/{name}.csv", ABLATIONS)
    grouped = frame.groupby("setting", sort=False)
    stable = frame[~frame["unstable"]].groupby("setting")["loss"]
    summary = pd.DataFrame(
        {
            "runs": grouped.size(),
            "failed": grouped["unstable"].sum(),
            "unstable": 100 * grouped["unstable"].mean(),
        }
    ).join(pd.DataFrame({"loss": stable.median(), "error": stable.sem()}))
    return summary.reset_index()


def unstable_by_eps(context: Context) -> pd.DataFrame:
    """Failed runs with the linear map by Adam's eps, with and without a stable embedding.

    Returns:
        `setting`, a row of the 8-bit paper's table 3; `eps`; `failed`; `runs`.
    """
    frame = context.table("ablations/eight-bit-eps.csv", ABLATIONS)
    frame = frame.assign(
        setting=frame["setting"].str.rpartition(" | ")[0],
        eps=[float(f"{eps:.0e}") for eps in frame["eps"]],  # 1e-8 times 10 is not 1e-7
    )
    # 1e-7 is the paper's, and ten times 1e-8: such runs are in the table more than once.
    frame = frame.drop_duplicates(["setting", "lr", "beta1", "beta2", "eps", "seed"])
    grouped = frame[frame["setting"].str.startswith("8")].groupby(["setting", "eps"])["unstable"]
    return grouped.agg(failed="sum", runs="size").reset_index()


def counts(summary: pd.DataFrame) -> dict[str, tuple[int, int]]:
    """Number of unstable runs of each setting, and of all its runs; see `ablation`."""
    return {
        str(row["setting"]): (int(row["failed"]), int(row["runs"]))
        for row in summary.to_dict("records")
    }


def by_task(context: Context) -> pd.DataFrame:
    """Differences to 32-bit AdamW at its best rate, seed by seed.

    Returns:
        `judge`, `quantizer`; `base`, the mean loss of 32 bits; `seeds`; `difference`, the mean
        over seeds; `low` and `high`, the ends of its 95 % interval by a t-test; `error`.
    """
    runs = context.table("judges.csv", TASK_RUNS)
    more = context.table("recommended.csv", RECOMMENDED)
    prediction = context.table("prediction/trials.csv", PREDICTION)
    runs = pd.concat([runs, more, prediction]).drop_duplicates(["judge", "quantizer", "lr", "seed"])
    rows = []
    for workload, of_workload in runs.groupby("judge", sort=False):
        full = of_workload[of_workload["quantizer"] == FULL]
        best = full.groupby("lr")["loss"].mean().idxmin()
        chosen = of_workload[of_workload["lr"] == best].set_index("seed")
        base = chosen[chosen["quantizer"] == FULL]["loss"]
        for quantizer, part in chosen.groupby("quantizer", sort=False):
            apart = (part["loss"] - base).dropna()
            if apart.empty:
                continue
            difference = interval(apart.tolist())
            rows.append(
                {"judge": workload, "quantizer": quantizer, "base": float(base[apart.index].mean()),
                 "seeds": len(apart), "difference": difference.mean, "low": difference.low,
                 "high": difference.high, "error": difference.error}
            )  # fmt: skip
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class Encoder:
    """A quantizer on the workload with pretrained weights.

    Attributes:
        said: how it ends, in a sentence.
        high: upper end of the interval of its difference to 32 bits.
        eps: of Adam there.
    """

    said: str
    high: float
    eps: float

    def explains(self, loss: float) -> bool:
        """True if the model removes more than half of another model's loss with this eps."""
        return self.high < loss / 2


def pretrained(differences: pd.DataFrame, quantizer: str) -> Encoder:
    """Final loss of a quantizer on the task with pretrained weights.

    It is a control for effects of the size of gradients: eps is the same, and the gradients are
    others.

    Args:
        differences: result of `by_task`.
        quantizer: a quantizer with runs on this task.
    """
    of = (differences["judge"] == PRETRAINED) & (differences["quantizer"] == quantizer)
    (row,) = differences[of].to_dict("records")
    eps = WORKLOADS[PRETRAINED].eps
    low, high = float(row["low"]), float(row["high"])
    return Encoder(
        f"How often that happens depends on the model: a pretrained encoder of 22.6 million "
        f"parameters ends by {row['difference']:+.4f} ({low:+.4f} to {high:+.4f}) from its "
        f"{row['base']:.4f} in 32 bits, with eps = {scientific(eps)} ({PRETRAINED}, "
        f"{row['seeds']:.0f} seeds).",
        high,
        eps,
    )


def alike(differences: pd.DataFrame, quantizer: str, name: str) -> list[Claim]:
    """Claims of equal final losses of a quantizer and 32 bits, task by task; see `within`."""
    return [
        Claim(
            f"{name} ends within {margin(row['base']):.2g} nats of 32-bit AdamW, at the rate "
            f"that is "
            f"best for it ({row['judge']}, {row['seeds']} seeds).",
            within(row["low"], row["high"], row["base"]),
            f"{row['difference']:+.4f} ({row['low']:+.4f} to {row['high']:+.4f}), of "
            f"{row['base']:.4f}.",
        )
        for row in differences[differences["quantizer"] == quantizer].to_dict("records")
    ]


def within(low: float, high: float, base: float) -> bool | tuple[()]:
    """True if an interval lies within the margin, False if outside of it, else empty."""
    if low > margin(base) or high < -margin(base):
        return False
    return True if -margin(base) < low and high < margin(base) else ()


def from_summary(row: Mapping[Any, Any]) -> tuple[float, float]:
    """The 95 % interval of a difference, from its row of `qmaps.lab.summarize_losses`."""
    seeds = int(row["seeds"])
    if not math.isfinite(row["difference"]):  # a run diverged
        return math.inf, math.inf
    if seeds < 2:
        return -math.inf, math.inf
    half = stats.t.ppf(1 - LEVEL / 2, seeds - 1) * row["difference_std"] / seeds**0.5
    return float(row["difference"] - half), float(row["difference"] + half)


def margin(base: float) -> float:
    """Margin in nats for losses equal to `base`."""
    return min(MARGIN, CLOSE * base)


def tuned(context: Context) -> pd.DataFrame:
    """The runs of each row of the 4-bit paper's table 2 at its own best rate, as `means`."""
    runs = context.table("tuned.csv", TUNED)
    runs["loss"] = runs["loss"].fillna(math.inf)
    keys = ["workload", "optimizer", "width"]
    mean_losses = runs.groupby([*keys, "rate"], sort=False)["loss"].mean().reset_index()
    best = mean_losses.loc[mean_losses.groupby(keys)["loss"].idxmin(), [*keys, "rate"]]
    return means(runs.merge(best, on=[*keys, "rate"]))


def task_losses(
    differences: pd.DataFrame, workload: str, names: Mapping[str, str]
) -> dict[str, Loss]:
    """Losses at the best rate of 32 bits, by name.

    Args:
        differences: result of `by_task`.
        workload: name of the workload.
        names: quantizers by name. The ± of 32 bits is 0; for the others it is the standard error
            of the difference to 32 bits, seed by seed.
    """
    rows = differences[differences["judge"] == workload].set_index("quantizer")
    base = float(rows["base"][FULL])  # some quantizers have fewer seeds
    return {
        name: (base + float(rows["difference"][spec]), float(rows["error"][spec]))
        for name, spec in names.items()
        if spec in rows.index
    }


def by_key(frame: pd.DataFrame) -> dict[tuple[str, str, str], dict[str, float]]:
    """`loss`, its standard `error` and `state_mib` by workload, optimizer and width."""
    numbers = ("loss", "error", "state_mib")
    return {
        (str(row["workload"]), str(row["optimizer"]), str(row["width"])): {
            name: float(row[name]) for name in numbers
        }
        for row in frame.to_dict("records")
    }


def means(frame: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds: `workload`, `optimizer`, `width`, `loss`, `state_mib`, `error`, `seeds`."""
    keys = ["workload", "optimizer", "width"]
    grouped = frame.groupby(keys, sort=False)
    averaged = grouped[["loss", "state_mib"]].mean()
    return averaged.assign(error=grouped["loss"].sem(), seeds=grouped.size()).reset_index()


def losses(
    frame: pd.DataFrame, workload: str, keys: Mapping[str, tuple[str, str]]
) -> dict[str, tuple[float, float]]:
    """Loss and standard error by name, for the optimizers and widths of the workload."""
    grouped = by_key(frame)
    rows = {name: grouped.get((workload, *key)) for name, key in keys.items()}
    return {name: (row["loss"], row["error"]) for name, row in rows.items() if row is not None}


def steps(context: Context) -> pd.DataFrame:
    """Times of optimizer steps.

    Returns:
        `machine`, `case`, `contender`, `nanoseconds` (median, per element), `spread` (half of the
        interquartile range), `bandwidth` (share of the machine's, NaN where bytes are unknown).
    """
    return pd.DataFrame(
        {
            "machine": machine,
            "case": case["name"],
            "contender": name,
            "nanoseconds": value["median"],
            "spread": (value["q3"] - value["q1"]) / 2,
            "bandwidth": case["share_of_bandwidth"].get(name, math.nan),
        }
        for machine, cases in machines(context).items()
        for case in cases
        if case["unit"] == "ns per element"
        for name, value in case["values"].items()
    )


def machines(context: Context) -> dict[str, list[dict[str, Any]]]:
    """The cases of the benchmark by processor, from all committed results."""
    by_name = {}
    for file in ("bench/amd-epyc/cpu.json", "bench/intel-xeon/cpu.json"):
        result = context.json(file, BENCH)
        host = result["about"]["machine"]
        model = f" ({host['model']})" if host.get("model") else ""
        by_name[short(str(host["processor"])) + model] = list(result["cases"])
    return by_name


def short(processor: str) -> str:
    """A processor's name as the pages give it."""
    return processor.replace("(R)", "").replace(" Processor", "")
