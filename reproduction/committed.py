"""Tables that other commands made, in the papers' terms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from reproduction.context import Context

PARITY = "python -m benchmarks.parity digits stdlib-lm-tiny"
FIRST_MOMENT = "python -m benchmarks.parity --out reports/parity-first-moment"
ABLATIONS = "python -m benchmarks.ablations"
BENCH = "python -m benchmarks"
ON_A_CPU = (
    "How a step in few bits compares with torch's fused one depends on the CPU; reports/bench has "
    "two."
)
LANGUAGE, VISION = "stdlib-lm-tiny", "digits"
"""Workloads that replace language and image tasks of the papers."""
STEP = "optimizer's step, times torch's fused"
PEER = "torch fused"


def ablation(context: Context, name: str) -> pd.DataFrame:
    """Stability of training, a row per setting.

    Returns:
        `setting`, `runs`, `unstable` (percent), `loss` (median of stable runs), `error` (their
        standard error, which includes the effect of hyperparameters).
    """
    frame = context.table(f"ablations/{name}.csv", ABLATIONS)
    grouped = frame.groupby("setting", sort=False)
    stable = frame[~frame["unstable"]].groupby("setting")["loss"]
    summary = pd.DataFrame(
        {"runs": grouped.size(), "unstable": 100 * grouped["unstable"].mean()}
    ).join(pd.DataFrame({"loss": stable.median(), "error": stable.sem()}))
    return summary.reset_index()


def parity(context: Context) -> pd.DataFrame:
    """Mean final losses: `workload`, `optimizer`, `width`, `loss`, `state_mib`, `seeds`."""
    return _means(_of_today(context.table("parity.csv", PARITY)))


def first_moment(context: Context) -> pd.DataFrame:
    """The same with one moment quantized."""
    return _means(_of_today(context.table("parity-first-moment.csv", FIRST_MOMENT)))


def _of_today(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of parity under today's names of presets.

    Until version 0.2 ``4bit`` was the paper's pair, and `benchmarks.parity` had no row for
    ``paper-4bit``.
    """
    if (frame["width"] == "paper-4bit").any():
        return frame
    return frame.replace({"width": {"4bit": "paper-4bit"}})


def by_key(means: pd.DataFrame) -> dict[tuple[str, str, str], dict[str, float]]:
    """`loss`, its standard `error` and `state_mib` by workload, optimizer and width."""
    numbers = ("loss", "error", "state_mib")
    return {
        (str(row["workload"]), str(row["optimizer"]), str(row["width"])): {
            name: float(row[name]) for name in numbers
        }
        for row in means.to_dict("records")
    }


def _means(frame: pd.DataFrame) -> pd.DataFrame:
    keys = ["workload", "optimizer", "width"]
    grouped = frame.groupby(keys, sort=False)
    means = grouped[["loss", "state_mib"]].mean()
    return means.assign(error=grouped["loss"].sem(), seeds=grouped.size()).reset_index()


def losses(
    means: pd.DataFrame, workload: str, keys: Mapping[str, tuple[str, str]]
) -> dict[str, tuple[float, float]]:
    """Loss and standard error by name, of those optimizers and widths that the workload has."""
    found = by_key(means)
    rows = {name: found.get((workload, *key)) for name, key in keys.items()}
    return {name: (row["loss"], row["error"]) for name, row in rows.items() if row is not None}


def relative_steps(context: Context) -> pd.DataFrame:
    """Times of qmaps' steps relative to torch's fused steps, timed alternately.

    Returns:
        `case`; `ratio`, the time of a step in multiples of torch's; `spread`, half of the
        interquartile range over rounds.
    """
    rows = []
    for case in _cases(context):
        peer = case["ratios"].get(PEER)
        if peer:
            low, ratio, high = (1 / peer[name] for name in ("q3", "ratio", "q1"))
            rows.append({"case": case["name"], "ratio": ratio, "spread": (high - low) / 2})
    return pd.DataFrame(rows)


def step_of(
    steps: pd.DataFrame, cases: Mapping[str, str], full: Iterable[str]
) -> dict[str, float | tuple[float, float]]:
    """Relative step times by name; those in `full` are torch's own, 1 by definition.

    Args:
        steps: the frame that `relative_steps` returns.
        cases: cases of the frame by name.
        full: names of 32-bit optimizers.
    """
    rows = {str(row["case"]): row for row in steps.to_dict("records")}
    found: dict[str, float | tuple[float, float]] = dict.fromkeys(full, 1.0)
    for name, case in cases.items():
        if case in rows:
            found[name] = (float(rows[case]["ratio"]), float(rows[case]["spread"]))
    return found


def steps(context: Context) -> pd.DataFrame:
    """Times of optimizer steps: `case`, `contender`, `nanoseconds` (median, per element)."""
    return pd.DataFrame(
        {"case": case["name"], "contender": name, "nanoseconds": value["median"]}
        for case in _cases(context)
        if case["unit"] == "ns per element"
        for name, value in case["values"].items()
    )


def _cases(context: Context) -> list[dict[str, Any]]:
    return list(context.json("bench/cpu.json", BENCH)["cases"])
