"""The errors of the updates of a large parameter, chunk by chunk."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from qmaps.algebra.pair import adam_update, zero_points
from qmaps.algebra.quantized import QuantizedTensor
from qmaps.analyze._updates import LEVELS, Exact, Moment, element_errors
from qmaps.engines import dispatch
from qmaps.engines.native import metrics as native
from qmaps.sweep.order import OUT, Ranks


@dataclass
class Errors:
    """The errors under one pair, in two passes over the chunks."""

    ranks: tuple[Ranks, Ranks] = field(default_factory=lambda: (Ranks(), Ranks()))
    collapsed: int = 0

    def add(self, found: ChunkErrors) -> None:
        """Add a chunk in the first pass."""
        for ranks, bits, total in zip(self.ranks, found.bits, found.totals, strict=True):
            ranks.add(bits, total)
        self.collapsed += found.collapsed

    def turn(self) -> None:
        """End the first pass."""
        for ranks in self.ranks:
            ranks.turn([*LEVELS.values(), 1.0])

    def add_again(self, found: ChunkErrors) -> None:
        """Add a chunk in the second pass."""
        for ranks, bits in zip(self.ranks, found.bits, strict=True):
            ranks.add_again(bits)

    def columns(self, numel: int) -> dict[str, float]:
        """As `qmaps.analyze._updates.Collector.columns`, of `numel` elements."""
        columns: dict[str, float] = {}
        for kind, ranks in zip(("abs", "rel"), self.ranks, strict=True):
            mean = ranks.total / ranks.count if ranks.count else math.nan
            values = [mean, *ranks.values(len(LEVELS) + 1)]
            names = ("mean", *LEVELS, "max")
            columns |= {f"{n}_{kind}_error": v for n, v in zip(names, values, strict=True)}
        return columns | {"zeroed_share": self.collapsed / numel}


@dataclass(frozen=True)
class ChunkErrors:
    """The errors of the updates of one chunk: absolute ones, and relative ones.

    Attributes:
        bits: both as bits of float32; of relative ones that do not count, `OUT`.
        totals: their sums.
        collapsed: elements whose second moment decodes to 0 under a first one that does not.
    """

    bits: tuple[NDArray[np.uint32], NDArray[np.uint32]]
    totals: tuple[float, float]
    collapsed: int

    @staticmethod
    def of(exact: Exact, first: Moment, second: Moment) -> ChunkErrors:
        """Measure a chunk on the native engine, or as the reference does; all on the CPU.

        Args:
            exact: its second moment, eps and update in 32 bits.
            first: its first moment under the pair.
            second: its second moment under the pair.
        """
        if dispatch.runs_native(exact.update):
            errors = _collectors.errors
            errors.clear()
            errors.add(exact.update, exact.v, _readable(first), _readable(second), exact.eps)
            _, collapsed, (_, total, _), (_, relative, _) = errors.summary([])
            absolute_bits, relative_bits = (b.numpy().view(np.uint32) for b in errors.bits())
            return ChunkErrors((absolute_bits, relative_bits), (total, relative), collapsed)
        m, v = _values(first), _values(second)
        absolute, kept = element_errors(exact.update, adam_update(m, v, exact.eps))
        relative_bits = np.full(absolute.size, OUT, np.uint32)
        relative_bits[exact.update.numpy() != 0] = kept.view(np.uint32)
        totals = float(absolute.sum(dtype=np.float64)), float(kept.sum(dtype=np.float64))
        collapsed = int(zero_points(m, v, exact.v).sum())
        return ChunkErrors((absolute.view(np.uint32), relative_bits), totals, collapsed)


class _Collectors(threading.local):
    """A collector for each thread, made at its first use: there may be no native engine."""

    @cached_property
    def errors(self) -> native.UpdateErrors:
        return native.UpdateErrors()


_collectors = _Collectors()


def _readable(moment: Moment) -> Moment:
    if isinstance(moment, QuantizedTensor) and native.supports_tensor(moment):
        return moment
    return _values(moment).contiguous()


def _values(moment: Moment) -> Tensor:
    return (moment if isinstance(moment, Tensor) else moment.dequantize()).cpu()
