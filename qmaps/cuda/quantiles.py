"""Quantiles of short stretches on the CUDA engine; the host waits for nothing."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from qmaps.cuda import layout
from qmaps.cuda.compiler import kernel
from qmaps.cuda.engine import Engine
from qmaps.cuda.tensors import DTYPES
from qmaps.engines.addresses import address

WORKSPACE = 1 << 21
"""The number of float64 quantiles of stretches that are held before they are added up."""

_COLUMNS = 32


LONGEST = layout.SORTED
"""Elements of a stretch that a block of threads sorts."""


def add_quantiles(
    engine: Engine, x: Tensor, size: int, below: Tensor, fraction: Tensor, sums: Tensor
) -> Tensor:
    """As `add_quantiles` of `qmaps.engines.order_statistics.Executor`.

    The count is 0-d int64 on the device.
    """
    x = (x if x.dtype in DTYPES else x.float()).contiguous()
    bits = (size - 1).bit_length()
    rows, num = x.numel() // size, below.numel()
    together = min(rows, max(1, WORKSPACE // num))
    at_once = layout.SORTED >> bits
    workspace = torch.empty(together * num, dtype=torch.float64, device=x.device)
    bad = torch.zeros((), dtype=torch.int64, device=x.device)
    task = np.zeros((), dtype=layout.STRETCHES)
    task["size"], task["count"] = size, num
    task["below"], task["fraction"] = address(below), address(fraction)
    task["quantiles"], task["sums"] = address(workspace), address(sums)
    task["bad"] = address(bad)
    find = kernel("find_quantiles", DTYPES[x.dtype], bits)
    for first in range(0, rows, together):
        task["rows"] = min(together, rows - first)
        task["x"] = address(x) + first * size * x.element_size()
        # A block for each sort, and no loop in it: they end evenly.
        engine.launch(find, -(-int(task["rows"]) // at_once), task)
        engine.launch_over(kernel("add_rows"), -(-num // _COLUMNS), task)
    return bad
