"""256 quantiles on a device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.case import OURS, Setup
from benchmarks.data import normal
from benchmarks.gpu.case import GpuCase
from benchmarks.timing import Work
from qmaps.ops.quantiles import exact, sram

NUM = 256
FULL, SMALLER = 1 << 28, 1 << 24
NEEDED = 64
SORT, KTH, QUANTILE = "torch.sort", "torch.kthvalue, one of them", "torch.quantile"
GOAL = 0.02


def sort(x: Tensor) -> Work:
    """All of them, in order."""
    return lambda: torch.sort(x)


def kth(x: Tensor) -> Work:
    """One order statistic."""
    return lambda: torch.kthvalue(x, x.numel() // 3)


def quantile(x: Tensor) -> Work:
    """The same quantiles; at most 16 million elements."""
    levels = (torch.arange(NUM, device=x.device) + 0.5) / NUM
    return lambda: torch.quantile(x, levels)


def of(
    ours: Callable[[Tensor, int], Tensor], peers: dict[str, Callable[[Tensor], Work]]
) -> Callable[[torch.device, int], Setup]:
    """Quantiles of normal numbers."""

    def make(device: torch.device, elements: int) -> Setup:
        x = normal((elements,), device=device)
        methods: dict[str, Callable[[], Work]] = {OURS: lambda: lambda: ours(x, NUM)}
        for name, prepare in peers.items():
            methods[name] = lambda prepare=prepare: prepare(x)
        return Setup(methods, elements=elements, nbytes={OURS: 4.0})

    return make


CASES = (
    GpuCase(
        "SRAM quantiles",
        of(sram, {SORT: sort}),
        FULL,
        NEEDED,
        most_ns=GOAL,
        note="the paper of 2021 gives 0.064 ns per element on a V100",
    ),
    GpuCase("exact quantiles", of(exact, {SORT: sort, KTH: kth}), FULL, NEEDED),
    GpuCase(
        "exact quantiles of fewer elements",
        of(exact, {QUANTILE: quantile, SORT: sort, KTH: kth}),
        SMALLER,
        2 * NEEDED,
        note="2^24 elements, the most that torch.quantile takes; they fit in the cache of some "
        "devices",
    ),
)
