"""Tables that other commands made, in the papers' terms."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from qmaps.papers.context import Context

PARITY = "python -m benchmarks.parity digits stdlib-lm-tiny"
FIRST_MOMENT = "python -m benchmarks.parity --out reports/parity-first-moment"
ABLATIONS = "python -m benchmarks.ablations"
BENCH = "python -m benchmarks"


def ablation(context: Context, name: str) -> pd.DataFrame:
    """One row per setting: `setting`, `runs`, `unstable` (percent), `loss` (median of stable)."""
    frame = context.table(f"ablations/{name}.csv", ABLATIONS)
    grouped = frame.groupby("setting", sort=False)
    stable = frame[~frame["unstable"]].groupby("setting")["loss"].median()
    summary = pd.DataFrame(
        {"runs": grouped.size(), "unstable": 100 * grouped["unstable"].mean()}
    ).join(stable)
    return summary.reset_index()


def parity(context: Context) -> pd.DataFrame:
    """Mean final losses: `workload`, `optimizer`, `width`, `loss`, `state_mib`, `seeds`."""
    return _means(context.table("parity.csv", PARITY))


def first_moment(context: Context) -> pd.DataFrame:
    """The same with one moment quantized."""
    return _means(context.table("parity-first-moment.csv", FIRST_MOMENT))


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


def steps(context: Context) -> pd.DataFrame:
    """Times of optimizer steps: `case`, `contender`, `nanoseconds` (median, per element)."""
    path = context.file("bench/cpu.json", BENCH)
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return pd.DataFrame(
        {"case": case["name"], "contender": name, "nanoseconds": value["median"]}
        for case in results["cases"]
        if case["unit"] == "ns per element"
        for name, value in case["values"].items()
    )
