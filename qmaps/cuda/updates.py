"""Errors of Adam updates on the CUDA engine; `qmaps.engines.native.metrics` has the arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from qmaps.cuda import layout
from qmaps.cuda.codebooks import codebook
from qmaps.cuda.engine import Engine
from qmaps.cuda.kernels import kernel
from qmaps.cuda.metrics import add_parts, partial_sums
from qmaps.cuda.quantiles import Quantiles
from qmaps.cuda.tensors import describe_stored, layout_of, tiles
from qmaps.engines.addresses import address

if TYPE_CHECKING:
    from qmaps.algebra.quantizer import QuantizedTensor

SEGMENT = 1 << 24
"""Elements that `add_update_grid` processes at a time, a multiple of a tile; 50 bytes each."""


class UpdateErrors:
    """Errors of Adam updates over parameters given one after another; 8 bytes per element.

    Order statistics are exact; float64 sums are taken in an order fixed by the parameters' sizes.
    The host waits in `summary` alone.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._numel = 0
        # Absolute and relative errors.
        self._errors = torch.empty(2, 0, dtype=torch.float32, device=engine.device)
        size = layout.UPDATE_TOTALS.itemsize
        self._totals = torch.zeros(size, dtype=torch.uint8, device=engine.device)

    def clear(self) -> None:
        """Start again from nothing, keeping the memory."""
        self._numel = 0
        self._totals.zero_()

    def add(
        self,
        exact: Tensor,
        v: Tensor,
        first: Tensor | QuantizedTensor,
        second: Tensor | QuantizedTensor,
        eps: float,
    ) -> None:
        """Add the errors of one parameter, on the engine's device."""
        numel = exact.numel()
        self._reserve(self._numel + numel)
        parts = partial_sums(numel, layout.UPDATE_SUMS, exact.device)
        task = np.zeros((), dtype=layout.UPDATE_ERRORS)
        memory = _describe(self._engine, task["updates"], exact, first, second, eps)
        task["v"], task["parts"] = address(v), address(parts)
        task["absolute"], task["relative"] = (
            address(row) + row.element_size() * self._numel for row in self._errors
        )
        task["totals"] = address(self._totals)
        self._engine.launch_over(kernel("update_errors"), len(parts), task)
        add_parts(self._engine, parts, address(self._totals))
        self._numel += numel
        del memory  # the kernels read it until here

    def summary(self, levels: Sequence[float]) -> tuple[int, int, list[Any], list[Any]]:
        """The errors of all parameters together."""
        totals = self._totals.cpu().numpy().view(layout.UPDATE_TOTALS)[0]
        counts = (self._numel, int(totals["nonzero"]))
        kinds = [
            [count, float(total), self._ranked(kind, count, levels)]
            for kind, (count, total) in enumerate(zip(counts, totals["sums"], strict=True))
        ]
        return self._numel, int(totals["collapsed"]), kinds[0], kinds[1]

    def _ranked(self, kind: int, count: int, levels: Sequence[float]) -> list[float]:
        """Quantiles and the maximum of the `count` errors of one kind, without those left out."""
        if count == 0:
            return []
        ranks = [math.ceil(level * count) - 1 for level in levels] + [count - 1]
        # Those left out are -0 and come first.
        skipped = self._numel - count
        wanted = torch.tensor(ranks, dtype=torch.int64, device=self._engine.device) + skipped
        values, _ = Quantiles(self._engine).order_statistics(
            self._errors[kind, : self._numel], wanted
        )
        return [float(value) for value in values.tolist()]

    def _reserve(self, numel: int) -> None:
        capacity = self._errors.shape[1]
        if numel <= capacity:
            return
        larger = self._errors.new_empty(2, max(numel, capacity + capacity // 2))
        larger[:, : self._numel] = self._errors[:, : self._numel]
        self._errors = larger


def add_update_grid(
    engine: Engine,
    exact: Tensor,
    first: QuantizedTensor,
    second: QuantizedTensor,
    eps: float,
    sums: Sequence[Tensor],
) -> None:
    """See `qmaps.engines.native.metrics.add_update_grid`.

    The host waits for nothing. Elements are sorted by cell, `SEGMENT` at a time; ``src/grid.cuh``
    defines their order of addition, equal for all launches.
    """
    numel, count = exact.numel(), sums[0].numel()
    argument = np.zeros((), dtype=layout.CELL_ERRORS)
    memory = _describe(engine, argument["updates"], exact, first, second, eps)
    argument["columns"] = sums[0].shape[1]
    cells = np.zeros((), dtype=layout.CELLS)
    cells["count"] = count
    for name, target in zip(("elements", "absolute", "relative", "nonzero"), sums, strict=True):
        cells[name] = address(target)
    numbers = torch.arange(count, dtype=torch.int32, device=exact.device)
    for begin in range(0, numel, SEGMENT):
        size = min(SEGMENT, numel - begin)
        cell = torch.empty(size, dtype=torch.int32, device=exact.device)
        errors = torch.empty(size, 2, dtype=torch.float64, device=exact.device)
        argument["begin"], argument["end"] = begin, begin + size
        argument["cells"], argument["errors"] = address(cell), address(errors)
        engine.launch_over(kernel("find_cells"), tiles(size), argument)

        ordered, order = cell.sort(stable=True)
        ends = torch.searchsorted(ordered, numbers, right=True)
        elements = ends.diff(prepend=ends.new_zeros(1))
        pieces = ((elements + (layout.PIECE - 1)) // layout.PIECE).cumsum(0)
        max_pieces = size // layout.PIECE + min(size, count)
        parts = torch.empty(max_pieces, layout.CELL_SUMS, dtype=torch.float64, device=exact.device)
        cells["errors"], cells["order"] = address(errors), address(order)
        cells["ends"], cells["pieces"] = address(ends), address(pieces)
        cells["parts"] = address(parts)
        engine.launch_over(kernel("sum_cells"), -(-max_pieces // layout.WARPS), cells)
        engine.launch_over(kernel("add_cells"), -(-count // layout.THREADS), cells)
    del memory  # the kernels read it until here


def _describe(
    engine: Engine,
    target: np.ndarray,
    exact: Tensor,
    first: Tensor | QuantizedTensor,
    second: Tensor | QuantizedTensor,
    eps: float,
) -> list[Tensor]:
    """Fill in ``Updates``; keep the returned tensors until the last launch."""
    target["exact"], target["numel"], target["eps"] = address(exact), exact.numel(), eps
    memory = []
    for row, moment in ((target["first"], first), (target["second"], second)):
        if isinstance(moment, Tensor):
            row["data"] = address(moment)
            continue
        q = moment.quantizer
        scale_layout = layout_of(q.normalizer, moment.shape)
        row["packed"], row["bits"] = address(moment.packed), q.map.bits
        row["values"] = codebook(q.map, engine.device).described["values"]
        row["log"] = scale_layout.geometry.log
        task = np.zeros((), dtype=layout.TENSOR)
        memory.append(describe_stored(engine, task, scale_layout, moment.scales))
        row["scales"] = task["scales"]
    return memory
