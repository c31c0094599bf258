"""Codebooks fitted to tensors, on the engine in use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from qmaps.algebra.quantizer import Quantizer
from qmaps.engines.native.least_squares import NativeCells
from qmaps.maps.base import Map
from qmaps.maps.fitted import FittedMap
from qmaps.maps.lloyd import Cells
from qmaps.ops.backends import native_runs
from qmaps.ops.quantiles import exact, sram


def quantiles(values: Tensor, num: int, offset: float | None = None) -> Tensor:
    """Exact quantiles on the CPU; on CUDA, whatever the engine, those of SRAM-Quantiles."""
    return (sram if values.is_cuda else exact)(values, num=num, offset=offset)


def cells(values: Tensor, weights: Tensor | None) -> Cells:
    """1-D float32 `values` in ascending order, with prefix sums."""
    fast = values.device.type == "cpu" and native_runs()
    return (NativeCells if fast else Cells)(values, weights)


def fit_each(quantizers: Sequence[Quantizer], x: Tensor) -> list[Quantizer]:
    """Freeze quantizers of one normalizer, all with fitted maps, to the same tensor.

    The fit ignores non-finite elements and those that share a scale with them.
    """
    normalizer = quantizers[0].normalizer
    x = x.float()
    scales = normalizer.scales(x)
    scale = normalizer.expand(scales, tuple(x.shape)).expand(x.shape)
    return fit_normalized(quantizers, normalizer.normalize(x, scales), scale)


def fit_normalized(quantizers: Sequence[Quantizer], n: Tensor, scale: Tensor) -> list[Quantizer]:
    """As `fit_each`, from float32 normalized values and the scale of each."""
    normalizer = quantizers[0].normalizer
    if normalizer.clips:
        n = n.clamp(-1, 1)  # a codebook that ends beyond would decode to more than the scale
    # If the sum is finite, all terms are.
    if not math.isfinite(n.double().sum() + scale.double().sum()):
        finite = n.isfinite() & scale.isfinite()
        n, scale = n[finite], scale[finite]
    frozen: dict[Map, Map] = {}
    maps = [q.map for q in quantizers if isinstance(q.map, FittedMap)]
    for cls in {type(map_) for map_ in maps}:
        same = [map_ for map_ in maps if type(map_) is cls]
        weights = scale.double().square() if cls.weighted else None
        frozen |= dict(zip(same, cls.fit_each(same, n, weights), strict=True))
    return [replace(q, map=frozen[q.map]) for q in quantizers if isinstance(q.map, FittedMap)]
