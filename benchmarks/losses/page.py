"""A study's runs as a page."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import pandas as pd
import torch

from benchmarks.markdown import markdown
from benchmarks.paired import detectable, paired
from benchmarks.trials import FULL

POINT = ["lr", "beta1", "beta2", "eps"]
"""Hyperparameters; runs are compared where they are the same."""
NUMBERS = ("seeds", "unstable", "loss", "minus 32 bits", "95 %", "std", "detectable")


MANY = 8
"""Smallest number of groups for a table of all differences at the top of a page."""


def differences(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of each group beside its baseline at the same hyperparameters.

    Args:
        frame: the rows of `benchmarks.losses.tune.run`.

    Returns:
        `group`, `optimizer`, `quantizer`, the columns of `POINT`; `unstable`, the number of
        unstable runs; `loss`, the mean; those of `paired`; `std`, the standard deviation of the
        difference over seeds; `detectable`, the detectable difference for as many seeds.
    """
    keys = ["group", "optimizer", "quantizer", *POINT]
    tuned = frame[frame["best"]]
    full = tuned[tuned["quantizer"] == FULL].set_index(["group", *POINT, "seed"])["loss"]
    records = []
    for names, part in tuned.groupby(keys, sort=False):
        losses = part.set_index(["group", *POINT, "seed"])["loss"]
        apart = paired(losses, full.reindex(losses.index))
        std = float((losses - full.reindex(losses.index)).std())
        records.append(
            dict(zip(keys, names, strict=True))
            | {"unstable": int(part["unstable"].sum()), "loss": losses.mean(), **apart, "std": std,
               "detectable": detectable(std, int(apart["seeds"]))}
        )  # fmt: skip
    return pd.DataFrame(records)


def page(name: str, description: str, frame: pd.DataFrame, command: str) -> str:
    """The report of a study, with a paragraph on its models and optimizers."""
    lines = [
        f"# Losses at tuned rates: {name}",
        "",
        f"`{command}`",
        "",
        *textwrap.dedent(f"    {description}").strip().splitlines(),
        "",
        f"torch {torch.__version__}, one thread for each run. Final validation losses. The rate of "
        "a group is the best of a sweep for its optimizer in 32 bits; a neighbour at half and one "
        "at twice its value were tried. Differences to 32 bits are taken seed by seed, at the same "
        "hyperparameters. A run is **unstable** that ends above the loss before training, or at no "
        "number; the loss of such a row is a mean over the runs that end at a number, and no "
        "difference is shown. **Detectable** is the difference that a paired t-test at the 5 % "
        "level sees in 80 % of all experiments with as many seeds.",
    ]
    compared = differences(frame)
    if frame["group"].nunique() >= MANY:
        lines += [
            "",
            "## All groups",
            "",
            "In bold: the interval leaves out 0.",
            "",
            *_all(compared),
        ]
    for group, part in frame.groupby("group", sort=False):
        lines += ["", f"## {group}", "", _length(part), ""]
        swept = part[~part["best"]].groupby("lr")["loss"]
        chosen = swept.mean().idxmin()
        rates = [
            (f"**{lr:g}**" if lr == chosen else f"{lr:g}", str(len(loss)), f"{loss.mean():.4f}")
            for lr, loss in swept
        ]
        lines += [*markdown(("rate, 32 bits", "seeds", "loss"), rates), ""]
        rows = compared[compared["group"] == group]
        varied = [name for name in POINT if rows[name].nunique() > 1]
        head = ("optimizer", "quantizer", *varied, *NUMBERS)
        lines += markdown(head, [_cells(row, varied) for row in rows.itertuples()])
    return "\n".join(lines) + "\n"


def _all(compared: pd.DataFrame) -> list[str]:
    """The differences of every group to 32 bits, in one table; those beyond chance in bold."""
    cells = []
    for row in compared[compared["quantizer"] != FULL].itertuples():
        *_, apart, interval, _, seen = _cells(row, ())
        beyond = apart and (row.low > 0 or row.high < 0)
        cells.append(
            [row.optimizer, row.quantizer, f"**{apart}**" if beyond else apart, interval, seen]
        )
    return markdown(("optimizer", "quantizer", "minus 32 bits", "95 %", "detectable"), cells)


def _length(part: pd.DataFrame) -> str:
    """The steps of a group's runs; the column counts micro-batches."""
    n = int(part["N"].iloc[0])
    steps = int(part["steps"].iloc[0]) // n
    return f"{steps} steps of {'one micro-batch' if n == 1 else f'{n} micro-batches'}."


def _cells(row: object, varied: Sequence[str]) -> list[str]:
    get = row.__getattribute__
    point = [f"{get(name):g}" for name in varied]
    head = [get("optimizer"), get("quantizer"), *point, str(get("seeds")), str(get("unstable"))]
    if get("unstable"):
        return [*head, f"{get('loss'):.3g}", "", "", "", ""]
    loss = f"{get('loss'):.4f}"
    if get("quantizer") == FULL:
        return [*head, loss, "", "", "", ""]
    interval = f"{get('low'):+.4f} to {get('high'):+.4f}"
    last = (f"{get(name):.4f}" for name in ("std", "detectable"))
    return [*head, loss, f"{get('difference'):+.4f}", interval, *last]
