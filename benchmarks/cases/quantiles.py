"""Exact quantiles of many numbers."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.case import OURS, Case, Setup
from benchmarks.data import vector
from qmaps.ops.quantiles import exact

PARTITION, SORT = "numpy.partition", "torch.sort"
NUM = 256


def make(scale: float) -> Setup:
    """256 quantiles, and the order statistics around each."""
    x = vector(scale)
    array = x.numpy()
    position = (np.arange(NUM) + 0.5) / NUM * (x.numel() - 1)
    below = np.floor(position).astype(np.int64)
    ranks = np.unique(np.concatenate([below, np.minimum(below + 1, x.numel() - 1)]))

    def check() -> dict[str, float]:
        parted = np.partition(array, ranks).astype(np.float64)
        low, high = parted[below], parted[np.minimum(below + 1, x.numel() - 1)]
        expected = torch.from_numpy(low + (high - low) * (position - below)).float()
        apart = (exact(x, NUM) - expected).abs().max().item()
        return {"largest difference from numpy's": apart}

    return Setup(
        {
            OURS: lambda: lambda: exact(x, NUM),
            PARTITION: lambda: lambda: np.partition(array, ranks),
            SORT: lambda: lambda: torch.sort(x),
        },
        elements=x.numel(),
        nbytes={OURS: 4.0},
        check=check,
    )


CASES = (Case("exact quantiles", make, {PARTITION: 25, SORT: 70}),)
