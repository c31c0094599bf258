"""Summaries of a replay: over all parameters, and step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd

from qmaps.algebra.pair import listed
from qmaps.analyze._states import MIN_SIZE, States, as_states
from qmaps.analyze.replay.recursion import share, shares, step_cost
from qmaps.analyze.replay.run import PairSpec, check, chosen, recursions, replayed
from qmaps.analyze.replay.source import share_of, source
from qmaps.engines.threads import one_thread
from qmaps.optim.presets import pair_of

SUMMED = (
    "descent",
    "kept_descent",
    "cost",
    "spent_cost",
    "shared_cost",
    "displacement",
    "displacement_gap",
    "displacement_shared",
)
LARGEST = ("largest_update",)


def summarize(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per pair of quantizers, over all parameters.

    Args:
        frame: a frame of `qmaps.replay.run`.

    Returns:
        The frame's columns without `step`, `parameter` and `shape`, the least step cost first:

        - `numel`, `descent`, `kept_descent`, `cost`, `spent_cost`, `shared_cost`, `displacement`,
          `displacement_gap` and `displacement_shared` are sums, from which `progress`,
          `net_progress`, `update_gain`, `update_noise`, `displacement_error` and
          `displacement_gain` follow: those of steps of all parameters with the same learning rate,
        - `largest_update` is the largest, and `step_cost` follows from it, `update_gain` and
          `update_noise`,
        - other measures are means over the parameters with a value, weighted by `numel`; each
          `stalled_share` by the number of moved elements, so it is the share over all,
        - `lag` follows from the mean `effective_beta`,
        - `gradients` is ``mixed`` where some were recorded and some simulated.
    """
    records = [_record(str(spec), group) for spec, group in frame.groupby("quantizer", sort=False)]
    return pd.DataFrame(records).sort_values(
        ["step_cost", "update_noise"],
        key=lambda column: column.clip(lower=0),  # longer updates are no advantage
        ignore_index=True,
    )


def _record(spec: str, group: pd.DataFrame) -> dict[str, Any]:
    kinds = group["gradients"].unique()
    record: dict[str, Any] = {
        "quantizer": spec,
        "first": group["first"].iloc[0],
        "second": group["second"].iloc[0],
        "numel": int(group["numel"].sum()),
        "steps": int(group["steps"].max()),
        "gradients": kinds[0] if len(kinds) == 1 else "mixed",
    }
    sums = {name: float(group[name].sum()) for name in SUMMED}
    measures = {**sums, **shares(sums)}
    names = list(group.columns)
    for name in names[names.index("bits_per_element") :]:
        if name in measures:
            record[name] = measures[name]
        elif name in LARGEST:
            record[name] = float(group[name].max())
        elif name == "step_cost":  # after the columns that it needs
            record[name] = step_cost(
                record["update_gain"], record["update_noise"], record["largest_update"]
            )
        elif name.startswith("lag_"):
            beta = record[name.replace("lag", "effective_beta")]
            record[name] = beta / (1 - beta) if beta < 1 else math.inf
        else:
            record[name] = _mean(name, group)
    return record


def _mean(name: str, group: pd.DataFrame) -> float:
    """The mean of a measure over the elements with a value; NaN if none has."""
    weight = group["numel"].to_numpy(float)
    if name.startswith("stalled_share"):
        moved = group[name.replace("stalled", "moved")].to_numpy(float)
        weight = weight * np.nan_to_num(moved)
    values = group[name].to_numpy(float)
    measured = ~np.isnan(values) & (weight > 0)
    if not measured.any():
        return math.nan
    return float(np.average(values[measured], weights=weight[measured]))


ELEMENTS = 4096
"""Elements of each parameter that are replayed, about."""
POINTS = 24
"""Most points of a curve."""


@one_thread()
def curves(
    states: States,
    specs: PairSpec | Iterable[PairSpec],
    *,
    steps: int | None = None,
    parameters: str | Iterable[str] | None = None,
    min_quantized_size: int = MIN_SIZE,
    progress: Callable[[int, int, str], None] | None = None,
) -> pd.DataFrame:
    """Replay Adam's moments as `run` does, and measure the way on its course.

    Args:
        states: as for `run`.
        specs: as for `run`.
        steps: as for `run`.
        parameters: names of parameters, with wildcards; all if left out.
        min_quantized_size: parameters of at most this many elements are left out.
        progress: as for `run`.

    Returns:
        One row per parameter, pair and point, at most 24 points: `parameter`,
        `quantizer`, `step` (of the replay, from 1 on), `displacement_gain` (how far the quantized
        updates have led along the way of the exact ones) and `displacement_error`. Parameters
        without recorded gradients beside others with some are left out.

    Raises:
        As `run`.
    """
    pairs = list(dict.fromkeys(pair_of(spec) for spec in listed(specs)))
    check(steps)
    captured = as_states(states)
    names = chosen(captured, parameters, min_quantized_size)
    numbers = {name: number for number, name in enumerate(captured.parameters())}
    rows = []
    for done, name in enumerate(names):
        if progress:
            progress(done, len(names), name)
        part = share_of(captured, [name], ELEMENTS)
        data = source(captured, name, numbers[name], steps=steps, share=part, seed=0)
        if data is None:
            continue
        _, first, second, updates = recursions(data, pairs, seed=0)
        last = data.steps - 1  # the last gradient only measures the update before it
        points = {-(-last * number // POINTS) for number in range(1, POINTS + 1)}
        for step in replayed(data, first, second, updates):
            if step not in points:
                continue
            rows += [
                {
                    "parameter": name,
                    "quantizer": pair.spec,
                    "step": step,
                    "displacement_gain": share(way["displacement_shared"], way["displacement"]),
                    "displacement_error": share(way["displacement_gap"], way["displacement"]),
                }
                for pair, way in zip(pairs, updates.displacements(), strict=True)
            ]
    if progress:
        progress(len(names), len(names), "")
    return pd.DataFrame(
        rows, columns=["parameter", "quantizer", "step", "displacement_gain", "displacement_error"]
    )
