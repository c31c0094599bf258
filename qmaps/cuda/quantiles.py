"""Order statistics on the CUDA engine; the host waits for nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from qmaps.cuda import layout
from qmaps.cuda.compiler import kernel
from qmaps.cuda.engine import Engine
from qmaps.cuda.tensors import DTYPES, tiles
from qmaps.engines.addresses import address

WORKSPACE = 1 << 21
"""The number of float64 quantiles of stretches that are held before they are added up."""

_SIGNIFICANT = {torch.float32: 32, torch.float16: 19, torch.bfloat16: 16}
"""Leading bits of a float32 beyond which all are zero."""
_COLUMNS = 32


@dataclass(frozen=True)
class Quantiles:
    """The `qmaps.ops.quantiles.Executor` of one device; counts are 0-d int64 on it."""

    engine: Engine
    LONGEST: ClassVar[int] = layout.SORTED
    """Elements of a stretch that a block of threads sorts."""

    def order_statistics(self, x: Tensor, ranks: Tensor) -> tuple[Tensor, Tensor]:
        x, ranks = _readable(x), ranks.contiguous()
        values = torch.empty(ranks.numel(), dtype=torch.float32, device=x.device)
        bad = torch.zeros((), dtype=torch.int64, device=x.device)
        for first in range(0, ranks.numel(), layout.MAX_RANKS):
            span = slice(first, first + layout.MAX_RANKS)
            self._select(x, ranks[span], values[span], bad.zero_())
        return values, bad

    def add_quantiles(
        self, x: Tensor, size: int, below: Tensor, fraction: Tensor, sums: Tensor
    ) -> Tensor:
        x = _readable(x)
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
            self.engine.launch(find, -(-int(task["rows"]) // at_once), task)
            self.engine.launch_over(kernel("add_rows"), -(-num // _COLUMNS), task)
        return bad

    def _select(self, x: Tensor, ranks: Tensor, values: Tensor, bad: Tensor) -> None:
        """Find the elements of at most `layout.MAX_RANKS` ranks, and count those that are bad."""
        bits = _SIGNIFICANT[x.dtype]
        narrowing = torch.zeros(layout.NARROWING.itemsize, dtype=torch.uint8, device=x.device)
        task = np.zeros((), dtype=layout.SELECTION)
        task["x"], task["numel"], task["bits"] = address(x), x.numel(), bits
        task["ranks"], task["count"] = address(ranks), ranks.numel()
        task["narrowing"], task["bad"] = address(narrowing), address(bad)
        task["values"] = address(values)
        # As many blocks as a device holds at once, given their shared memory.
        blocks = min(tiles(x.numel()), -(-self.engine.blocks // 2))
        for number in range(passes(ranks.numel(), bits)):
            count = kernel(f"count_{'next' if number else 'first'}_digit", DTYPES[x.dtype])
            self.engine.launch(count, blocks, task)
            self.engine.launch(kernel("decide_digit"), 1, task)


def passes(ranks: int, bits: int) -> int:
    """Maximum number of passes over the data for `bits`, one per digit; unneeded ones are quick.

    Args:
        ranks: the number of ranks, 1 to `layout.MAX_RANKS`.
        bits: the number of leading bits to find.
    """
    width = min(layout.FIRST_BITS, (layout.COUNTERS // ranks).bit_length() - 1)
    return 1 + -(-(bits - layout.FIRST_BITS) // width)


def _readable(x: Tensor) -> Tensor:
    return (x if x.dtype in DTYPES else x.float()).contiguous()
