"""The papers' claims, tested on a run's own states."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from itertools import pairwise
from typing import Any

import pandas as pd

from qmaps.sweep import summarize

HOLDS, PARTLY, DIFFERS = "holds here", "holds in part", "differs here"


@dataclass
class Claim:
    """One statement of a paper beside what was measured.

    Attributes:
        title: the statement.
        source: paper and place.
        verdict: `HOLDS`, `PARTLY` or `DIFFERS`.
        finding: one or two sentences with the numbers behind the verdict.
        table: rows to show, as column titles and cells.
    """

    title: str
    source: str
    verdict: str
    finding: str
    table: dict[str, list[str]] = field(default_factory=dict)


def papers() -> dict[str, Any]:
    """The papers' numbers that claims are compared with."""
    text = resources.files("qmaps.lab.report").joinpath("papers.json").read_text(encoding="utf-8")
    numbers: dict[str, Any] = json.loads(text)
    return numbers


Errors = Mapping[str, Mapping[str, float]]
"""The columns of an update-error frame by pair of quantizers."""


def claims(update_error: pd.DataFrame, sweep: pd.DataFrame | None = None) -> list[Claim]:
    """Every claim that the frames have the quantizers for.

    Args:
        update_error: a frame of `qmaps.analyze.update_error`.
        sweep: a frame of `qmaps.sweep.run`, for claims about the states themselves; they are left
            out without it.

    Returns:
        The claims, each with a verdict.
    """
    updates = _rows(update_error)
    first = {} if sweep is None else _rows(summarize(sweep, state="exp_avg"))
    makers: list[tuple[Callable[[Errors], Claim], Errors]] = [
        (_order_both, updates),
        (_order_first, updates),
        (_absolute_quantization, first),
        (_block_wise, updates),
        (_absolute, updates),
        (_zero_point, updates),
        (_first_moment, updates),
    ]
    found = []
    for maker, frame in makers:
        try:
            found.append(maker(frame))
        except KeyError:  # a quantizer that this frame does not have
            continue
    return found


def _rows(frame: pd.DataFrame) -> Errors:
    """The numbers of a frame by quantizer."""
    numbers = frame.select_dtypes("number")
    return {
        str(spec): {str(name): float(value) for name, value in row.items()}
        for spec, row in zip(frame["quantizer"], numbers.to_dict("records"), strict=True)
    }


def percent(value: float) -> str:
    """A fraction as percent with three significant digits, plain up to a million."""
    return f"{100 * value:,.3g} %" if value < 10 else f"{100 * value:,.0f} %"


def number(value: float) -> str:
    """Three significant digits, plain where that is readable."""
    if 1000 <= abs(value) < 1e7:
        return f"{value:,.0f}"
    return f"{value:.3g}" if 1e-4 <= abs(value) < 1000 or value == 0 else f"{value:.2e}"


def _order(frame: Errors, second: str, title: str) -> Claim:
    table6 = papers()["8-bit optimizers, table 6"]
    order, names = table6["order"], table6["names"]
    rows = {name: frame[f"tensor/{name}@8s + {second.replace('MAP', name)}"] for name in order}
    verdicts = {}
    for statistic in ("mean", "median"):
        values = [rows[name][f"{statistic}_rel_error"] for name in order]
        verdicts[statistic] = [low < high for low, high in pairwise(values)]
    steps = [*verdicts["mean"], *verdicts["median"]]
    broken = [
        f"{names[low]} < {names[high]} ({statistic}: "
        f"{percent(rows[low][f'{statistic}_rel_error'])} against "
        f"{percent(rows[high][f'{statistic}_rel_error'])})"
        for statistic in ("mean", "median")
        for (low, high), holds in zip(pairwise(order), verdicts[statistic], strict=True)
        if not holds
    ]
    if not broken:
        finding = "The whole order holds, by the mean and by the median."
    else:
        finding = "Not so here: " + "; ".join(broken) + ". The other neighbours are in order."
    rare = sorted(order, key=lambda name: rows[name]["p999_rel_error"])
    finding += (
        " By the 99.9th percentile, where the paper sees quantile quantization's sporadic large "
        f"errors, the order is {', '.join(names[name] for name in rare)}."
    )
    return Claim(
        title=title,
        source="8-bit optimizers, table 6",
        verdict=HOLDS if all(steps) else PARTLY if any(steps) else DIFFERS,
        finding=finding,
        table={
            "map": [names[name] for name in order],
            "paper, mean relative": [
                f"{table6['relative_percent'][n]} ± {table6['relative_percent_error'][n]} %"
                for n in order
            ],
            "here, mean relative": [percent(rows[n]["mean_rel_error"]) for n in order],
            "here, median relative": [percent(rows[n]["median_rel_error"]) for n in order],
            "here, 99.9th percentile": [percent(rows[n]["p999_rel_error"]) for n in order],
            "here, mean absolute": [number(rows[n]["mean_abs_error"]) for n in order],
            "here, zero-point share": [percent(rows[n]["zeroed_share"]) for n in order],
        },
    )


def _order_both(frame: Errors) -> Claim:
    return _order(
        frame,
        "tensor/MAP@8u",
        "Relative Adam error, 8 bits per tensor, both moments: "
        "dynamic < inverse dynamic < quantile < linear",
    )


def _order_first(frame: Errors) -> Claim:
    return _order(
        frame,
        "32-bit",
        "The same with only the first moment quantized: "
        "dynamic < inverse dynamic < quantile < linear",
    )


def _absolute_quantization(frame: Errors) -> Claim:
    table6 = papers()["8-bit optimizers, table 6"]
    order, names = table6["order"], table6["names"]
    values = [frame[f"tensor/{name}@8s"]["mean_abs_error"] for name in order]
    steps = [low < high for low, high in pairwise(values)]
    ours = sorted(zip(values, order, strict=True))
    return Claim(
        title="Absolute quantization error of the first moment: "
        "dynamic < inverse dynamic < quantile < linear",
        source="8-bit optimizers, table 6",
        verdict=HOLDS if all(steps) else PARTLY if any(steps) else DIFFERS,
        finding=f"Here the order is {' < '.join(names[name] for _, name in ours)}. Absolute sizes "
        "depend on the model's gradients and are not comparable.",
        table={
            "map": [names[name] for name in order],
            "paper, mean absolute": [
                f"{table6['absolute_1e10'][n]} ± {table6['absolute_1e10_error'][n]} e-10"
                for n in order
            ],
            "here, mean absolute": [number(value) for value in values],
            "here, over that of dynamic": [f"{value / values[0]:.2f}" for value in values],
        },
    )


def _block_wise(frame: Errors) -> Claim:
    tensor = frame["tensor/DE@8s + tensor/DE@8u"]
    block = frame["B2048/DE@8s + B2048/DE@8u"]
    columns = ("mean_abs_error", "median_abs_error", "mean_rel_error", "median_rel_error")
    better = [block[c] < tensor[c] for c in columns]
    return Claim(
        title="Block-wise dynamic quantization errs less than per tensor",
        source="8-bit optimizers, section 2.1, figure 4, appendix C",
        verdict=HOLDS if all(better) else PARTLY if any(better) else DIFFERS,
        finding=f"Mean absolute error {number(block['mean_abs_error'])} in blocks of 2048 "
        f"against {number(tensor['mean_abs_error'])} per tensor; medians "
        f"{number(block['median_abs_error'])} and "
        f"{number(tensor['median_abs_error'])}.",
    )


def _absolute(frame: Errors) -> Claim:
    numbers = papers()["8-bit optimizers, appendix C"]["mean_abs_error"]
    rows = {pair: frame[pair] for pair in numbers}
    ratios = [rows[pair]["mean_abs_error"] / numbers[pair] for pair in numbers]
    close = [0.5 <= ratio <= 2 for ratio in ratios]
    return Claim(
        title="Mean absolute Adam error: 0.0067 dynamic, 0.0061 block-wise dynamic",
        source="8-bit optimizers, appendix C",
        verdict=HOLDS if all(close) else PARTLY if any(close) else DIFFERS,
        finding="Within a factor of two counts as agreement; another model and another point of "
        "training. Where the second moment decodes to 0, single updates of m / eps rule the mean: "
        "see the zero-point share.",
        table={
            "quantizers": list(numbers),
            "paper, mean absolute": [str(value) for value in numbers.values()],
            "here, mean absolute": [number(r["mean_abs_error"]) for r in rows.values()],
            "here, median absolute": [number(r["median_abs_error"]) for r in rows.values()],
            "here, largest": [number(r["max_abs_error"]) for r in rows.values()],
            "here, zero-point share": [percent(r["zeroed_share"]) for r in rows.values()],
        },
    )


def _zero_point(frame: Errors) -> Claim:
    seconds = ("B128/DE@4u", "B128/DE-0@4u", "rank1/linear@4u")
    rows = {second: frame[f"B128/DE@4s + {second}"] for second in seconds}
    collapse = rows["B128/DE@4u"]["zeroed_share"]
    removed = all(rows[s]["zeroed_share"] == 0 for s in seconds[1:])
    factor = rows[seconds[0]]["mean_abs_error"] / rows[seconds[1]]["mean_abs_error"]
    worse = rows["B128/DE@4u"]["mean_abs_error"] > 2 * max(
        rows[s]["mean_abs_error"] for s in seconds[1:]
    )
    checks = (collapse > 0, removed, worse)
    return Claim(
        title="At 4 bits B128/DE on the second moment collapses at zero; DE-0 and linear do not",
        source="4-bit optimizers, section 4.1, figure 3, table 1",
        verdict=HOLDS if all(checks) else PARTLY if any(checks) else DIFFERS,
        finding=f"{percent(collapse)} of the second moments decode to 0 under a first moment that "
        f"does not, and multiply the mean error by {number(factor)} against DE-0.",
        table={
            "second moment (first: B128/DE@4s)": list(seconds),
            "zero-point share": [percent(r["zeroed_share"]) for r in rows.values()],
            "mean absolute": [number(r["mean_abs_error"]) for r in rows.values()],
            "median absolute": [number(r["median_abs_error"]) for r in rows.values()],
            "largest": [number(r["max_abs_error"]) for r in rows.values()],
        },
    )


def _first_moment(frame: Errors) -> Claim:
    both = frame["B128/DE@4s + rank1/linear@4u"]
    first = frame["B128/DE@4s + 32-bit"]
    second = frame["32-bit + rank1/linear@4u"]
    share = first["mean_abs_error"] / both["mean_abs_error"]
    return Claim(
        title="Nearly all of the 4-bit pair's error comes from the first moment",
        source="an earlier trial of this project's; no paper states it",
        verdict=HOLDS if share > 0.8 else DIFFERS,
        finding=f"Mean absolute error {number(both['mean_abs_error'])} for the pair, "
        f"{number(first['mean_abs_error'])} with only the first moment quantized, "
        f"{number(second['mean_abs_error'])} with only the second.",
    )
