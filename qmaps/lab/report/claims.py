"""The papers' claims, tested on a run's own states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import pairwise

import pandas as pd

from qmaps.lab.report.claim import Claim, published
from qmaps.sweep import summarize

EIGHT_BIT = "8-bit-optimizers"
MAPS = {"dynamic": "DE", "inverse dynamic": "inverse", "quantile": "quantile", "linear": "linear0"}
"""The maps of table 6 of the 8-bit paper, in its order, and their names in qmaps."""
APPENDIX_C = {
    "dynamic": "tensor/DE@8s + tensor/DE@8u",
    "block-wise dynamic": "B2048/DE@8s + B2048/DE@8u",
}
"""The pairs of quantizers of appendix C."""

Errors = Mapping[str, Mapping[str, float]]
"""The columns of an update-error frame by pair of quantizers."""


def claims(update_error: pd.DataFrame, sweep: pd.DataFrame | None = None) -> list[Claim]:
    """Every claim with its quantizers in the frames.

    Args:
        update_error: a frame of `qmaps.analyze.update_error`.
        sweep: a frame of `qmaps.sweep.run`, for claims about the states themselves; they are left
            out without it.

    Returns:
        The claims, each with a verdict.
    """
    updates = _rows(update_error)
    first = {} if sweep is None else _rows(summarize(sweep, state="exp_avg"))
    order = "dynamic < inverse dynamic < quantile < linear"
    both = f"Relative Adam error, 8 bits per tensor, both moments: {order}"
    alone = f"The same with only the first moment quantized: {order}"
    makers: list[tuple[Callable[[Errors], Claim], Errors]] = [
        (partial(_order, second="tensor/MAP@8u", text=both), updates),
        (partial(_order, second="32-bit", text=alone), updates),
        (_absolute_quantization, first),
        (_block_wise, updates),
        (_absolute, updates),
        (_zero_point, updates),
        (_first_moment, updates),
    ]
    made = []
    for maker, frame in makers:
        try:
            made.append(maker(frame))
        except KeyError:  # a quantizer that this frame does not have
            continue
    return made


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
    """Three significant digits, plain where readable."""
    if 1000 <= abs(value) < 1e7:
        return f"{value:,.0f}"
    return f"{value:.3g}" if 1e-4 <= abs(value) < 1000 or value == 0 else f"{value:.2e}"


def _printed(exhibit: str, quantity: str, names: Iterable[str]) -> list[tuple[float, float]]:
    """The 8-bit paper's number for each name, and its ±."""
    frame = published(EIGHT_BIT, exhibit)
    chosen = frame[frame["quantity"] == quantity].set_index("what").loc[list(names)]
    return list(zip(chosen["paper"], chosen["paper_spread"], strict=True))


def _order(frame: Errors, second: str, text: str) -> Claim:
    rows = {
        n: frame[f"tensor/{kind}@8s + {second.replace('MAP', kind)}"] for n, kind in MAPS.items()
    }
    steps = [
        (f"{low} < {high} ({statistic}", rows[low][column], rows[high][column])
        for statistic, column in (("mean", "mean_rel_error"), ("median", "median_rel_error"))
        for low, high in pairwise(MAPS)
    ]
    broken = [
        f"{step}: {percent(low)} against {percent(high)})"
        for step, low, high in steps
        if not low < high
    ]
    if not broken:
        finding = "The whole order holds, by the mean and by the median."
    else:
        finding = "Not so here: " + "; ".join(broken) + ". The other neighbours are in order."
    rare = sorted(MAPS, key=lambda name: rows[name]["p999_rel_error"])
    finding += (
        " By the 99.9th percentile, where the paper sees quantile quantization's sporadic large "
        f"errors, the order is {', '.join(rare)}."
    )
    return Claim(
        text,
        [low < high for _, low, high in steps],
        finding,
        source="8-bit optimizers, table 6",
        table={
            "map": list(MAPS),
            "paper, mean relative": [
                f"{paper} ± {spread} %"
                for paper, spread in _printed("table-6", "relative Adam error", MAPS)
            ],
            "here, mean relative": [percent(r["mean_rel_error"]) for r in rows.values()],
            "here, median relative": [percent(r["median_rel_error"]) for r in rows.values()],
            "here, 99.9th percentile": [percent(r["p999_rel_error"]) for r in rows.values()],
            "here, mean absolute": [number(r["mean_abs_error"]) for r in rows.values()],
            "here, zero-point share": [percent(r["zeroed_share"]) for r in rows.values()],
        },
    )


def _absolute_quantization(frame: Errors) -> Claim:
    values = [frame[f"tensor/{kind}@8s"]["mean_abs_error"] for kind in MAPS.values()]
    ours = sorted(zip(values, MAPS, strict=True))
    return Claim(
        "Absolute quantization error of the first moment: "
        "dynamic < inverse dynamic < quantile < linear",
        [low < high for low, high in pairwise(values)],
        f"Here the order is {' < '.join(name for _, name in ours)}. Absolute sizes "
        "depend on the model's gradients and are not comparable.",
        source="8-bit optimizers, table 6",
        table={
            "map": list(MAPS),
            "paper, mean absolute": [
                f"{paper} ± {spread} e-10"
                for paper, spread in _printed("table-6", "absolute quantization error", MAPS)
            ],
            "here, mean absolute": [number(value) for value in values],
            "here, over that of dynamic": [f"{value / values[0]:.2f}" for value in values],
        },
    )


def _block_wise(frame: Errors) -> Claim:
    tensor = frame["tensor/DE@8s + tensor/DE@8u"]
    block = frame["B2048/DE@8s + B2048/DE@8u"]
    columns = ("mean_abs_error", "median_abs_error", "mean_rel_error", "median_rel_error")
    return Claim(
        "Block-wise dynamic quantization errs less than per tensor",
        [block[c] < tensor[c] for c in columns],
        f"Mean absolute error {number(block['mean_abs_error'])} in blocks of 2048 "
        f"against {number(tensor['mean_abs_error'])} per tensor; medians "
        f"{number(block['median_abs_error'])} and "
        f"{number(tensor['median_abs_error'])}.",
        source="8-bit optimizers, section 2.1, figure 4, appendix C",
    )


def _absolute(frame: Errors) -> Claim:
    rows = [frame[pair] for pair in APPENDIX_C.values()]
    printed = [paper for paper, _ in _printed("appendix-c", "mean absolute Adam error", APPENDIX_C)]
    ratios = [row["mean_abs_error"] / paper for row, paper in zip(rows, printed, strict=True)]
    named = ", ".join(f"{paper} {name}" for paper, name in zip(printed, APPENDIX_C, strict=True))
    return Claim(
        f"Mean absolute Adam error: {named}",
        [0.5 <= ratio <= 2 for ratio in ratios],
        "Within a factor of two counts as agreement; another model and another point of "
        "training. Where the second moment decodes to 0, single updates of m / eps rule the mean: "
        "see the zero-point share.",
        source="8-bit optimizers, appendix C",
        table={
            "quantizers": list(APPENDIX_C.values()),
            "paper, mean absolute": [str(paper) for paper in printed],
            "here, mean absolute": [number(r["mean_abs_error"]) for r in rows],
            "here, median absolute": [number(r["median_abs_error"]) for r in rows],
            "here, largest": [number(r["max_abs_error"]) for r in rows],
            "here, zero-point share": [percent(r["zeroed_share"]) for r in rows],
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
    return Claim(
        "At 4 bits B128/DE on the second moment collapses at zero; DE-0 and linear do not",
        (collapse > 0, removed, worse),
        f"{percent(collapse)} of the second moments decode to 0 where the first moment does not, "
        f"and multiply the mean error by {number(factor)} against DE-0.",
        source="4-bit optimizers, section 4.1, figure 3, table 1",
        table={
            "second moment (first: B128/DE@4s)": list(seconds),
            "zero-point share": [percent(r["zeroed_share"]) for r in rows.values()],
            "mean absolute": [number(r["mean_abs_error"]) for r in rows.values()],
            "median absolute": [number(r["median_abs_error"]) for r in rows.values()],
            "largest": [number(r["max_abs_error"]) for r in rows.values()],
        },
    )


def _first_moment(frame: Errors) -> Claim:
    pair = frame["B128/DE@4s + rank1/linear@4u"]
    first = frame["B128/DE@4s + 32-bit"]
    second = frame["32-bit + rank1/linear@4u"]
    share = first["mean_abs_error"] / pair["mean_abs_error"]
    return Claim(
        "Nearly all of the 4-bit pair's error comes from the first moment",
        share > 0.8,
        f"Mean absolute error {number(pair['mean_abs_error'])} for the pair, "
        f"{number(first['mean_abs_error'])} with only the first moment quantized, "
        f"{number(second['mean_abs_error'])} with only the second.",
        source="an earlier trial of this project's; no paper states it",
    )
