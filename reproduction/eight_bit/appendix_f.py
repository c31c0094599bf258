"""Appendix F: estimating quantiles."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from qmaps import quantiles
from reproduction.claim import Claim, published
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.numbers import number
from reproduction.verdict import beside

NUM = 256
ELEMENTS, FEW = 1 << 22, 1 << 19
ROUNDS = 5
SORT, SRAM, EXACT = "full sort", "SRAM-Quantiles", "exact"
READ = "reading each number once"
METHODS: dict[str, Callable[[Tensor], Tensor]] = {
    SRAM: lambda x: quantiles.sram(x, NUM),
    EXACT: lambda x: quantiles.exact(x, NUM),
    SORT: lambda x: x.sort().values,
    READ: lambda x: x.sum(),
}


def build(context: Context) -> Frames:
    """Times in turns on normal numbers; ranks of the estimates on these and on captured states."""
    count = FEW if context.quick else ELEMENTS
    normal = torch.randn(count, generator=torch.Generator().manual_seed(0))
    times: dict[str, list[float]] = {name: [] for name in METHODS}
    for number_of_round in range(ROUNDS + 1):
        for name, method in METHODS.items():
            start = time.perf_counter()
            method(normal)
            if number_of_round:  # the first one warms up
                times[name].append(1e9 * (time.perf_counter() - start) / count)
    timing = pd.DataFrame(
        {"method": name, "elements": count, "nanoseconds": float(np.median(seconds))}
        for name, seconds in times.items()
    )
    data = {"normal numbers": normal}
    for state in ("exp_avg", "exp_avg_sq"):
        tensors = [t for _, name, t in context.states.items() if name == state]
        data[f"{state}, largest tensor"] = max(tensors, key=Tensor.numel).reshape(-1)
    rows = []
    for title, x in data.items():
        ascending = x.sort().values
        for name in (SRAM, EXACT):
            ranks = _rank_errors(METHODS[name](x), ascending)
            rows.append(
                {
                    "data": title,
                    "method": name,
                    "elements": x.numel(),
                    "mean_rank_error": float(ranks.mean()),
                    "max_rank_error": float(ranks.max()),
                }
            )
    return {"time": timing, "accuracy": pd.DataFrame(rows)}


def _rank_errors(estimated: Tensor, ascending: Tensor) -> Tensor:
    """Share of the elements between each estimate and its level."""
    n = ascending.numel()
    level = (torch.arange(NUM, dtype=torch.float64) + 0.5) / NUM * (n - 1)
    first = torch.searchsorted(ascending, estimated) - 1
    last = torch.searchsorted(ascending, estimated, right=True)
    return torch.maximum(first - level, level - last).clamp(min=0) / n


def find(frames: Frames) -> Finding:
    """Times beside the paper's, accuracy by itself."""
    times = frames["time"].set_index("method")["nanoseconds"]
    ours = {(str(name), "time per element"): float(value) for name, value in times.items()}
    accuracy = frames["accuracy"]
    normal = accuracy[accuracy["data"] == "normal numbers"]
    off = float(normal.set_index("method")["mean_rank_error"][SRAM])
    paper = published("8-bit-optimizers", EXHIBIT.name)
    return Finding(
        numbers=beside(paper, ours),
        statements=[
            Claim(
                "SRAM-Quantiles are much faster than a full sort.",
                bool(times[SRAM] < times[SORT] / 2),
                f"{number(times[SORT] / times[SRAM])} times; exact quantiles by counting bits are "
                f"{number(times[SORT] / times[EXACT])} times as fast.",
            ),
            Claim(
                "Their estimates are accurate (less than a tenth of a level off on average).",
                off < 0.1 / NUM,
                f"Mean rank error {number(off)} on normal "
                f"numbers, where levels lie {number(1 / NUM)} apart.",
            ),
        ],
        why="The paper's time is that of a GPU that sorts in its SRAM; times here are medians on "
        "this CPU, taken in turns. Where chunks of a tensor "
        "are not alike, as in a second moment, averaging their quantiles is biased: see the table. "
        "The two general algorithms are not built here; their times are what the paper cites. "
        "Exact quantiles need no such average, and are what `quantile` is fitted with.",
        tables={"accuracy": accuracy},
    )


EXHIBIT = Exhibit(
    name="appendix-f",
    covers=("Appendix F",),
    title="Time and accuracy of quantile estimation",
    needs=Needs.STATES,
    timed="^time per element|faster",
    source="normal numbers (seed 0) and states of {headline}",
    build=build,
    find=find,
)
