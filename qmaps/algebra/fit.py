"""Codebooks fitted to tensors, by the functions of an engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from qmaps.algebra.quantizer import Quantizer
from qmaps.maps.base import Map
from qmaps.maps.fitted import FitFunctions, FittedMap


def fit_each(
    quantizers: Sequence[Quantizer], x: Tensor, functions: FitFunctions
) -> list[Quantizer]:
    """Freeze quantizers of one normalizer, all with fitted maps, to the same tensor.

    The fit ignores non-finite elements and those that share a scale with them.
    """
    normalizer = quantizers[0].normalizer
    x = x.float()
    scales = normalizer.scales(x)
    scale = normalizer.expand(scales, tuple(x.shape)).expand(x.shape)
    return fit_normalized(quantizers, normalizer.normalize(x, scales), scale, functions)


def fit_normalized(
    quantizers: Sequence[Quantizer], n: Tensor, scale: Tensor, functions: FitFunctions
) -> list[Quantizer]:
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
        frozen |= dict(zip(same, cls.fit_each(same, n, weights, functions), strict=True))
    return [replace(q, map=frozen[q.map]) for q in quantizers if isinstance(q.map, FittedMap)]
