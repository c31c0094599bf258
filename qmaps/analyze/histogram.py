"""Histograms of a tensor on its way through a quantizer, and the curves of maps."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from qmaps.algebra.low_rank import low_rank_of, product
from qmaps.algebra.quantizer import Quantizer, quantizer
from qmaps.engines.reference import decode
from qmaps.maps.base import Map

BINS = 120


def histogram(
    x: Tensor, quantizers: Iterable[Quantizer | str], *, bins: int = BINS
) -> pd.DataFrame:
    """log10 magnitudes of a tensor: original, normalized, quantized, dequantized.

    Args:
        x: one state, of any shape, on the CPU.
        quantizers: quantizers of the state, or their specs; at least one.
        bins: number of bins of equal width in log10. "original" and "dequantized" share their
            edges, and so do "normalized" and "quantized".

    Returns:
        One row per quantizer, panel and bin: `quantizer`, `panel` ("original", "normalized",
        "quantized" or "dequantized"), `bin_left`, `bin_right` (log10 of the magnitude), `count`
        (elements), and `zeros` (elements equal to 0).

    With a low-rank part, "normalized" and "quantized" show the rest of the tensor, which has the
    codes. Dither's offsets are in "dequantized" alone.

    Source: 4-bit optimizers, figures 20 to 31.
    """
    frames = []
    for spec in quantizers:
        q = quantizer(spec)
        t = q.quantize(x)
        factors = low_rank_of(t)
        coded = x.float() - product(factors) if factors else x.float()
        normalized = q.normalizer.normalize(coded, t.scales)
        values = decode(t.codes(), t.quantizer.map)
        if q.normalizer.log_domain:  # it marks zero by -1
            normalized, values = normalized.clamp(min=0), values.clamp(min=0)
        panels = {
            "original": x,
            "normalized": normalized,
            "quantized": values,
            "dequantized": t.dequantize(),
        }
        logs = {name: _log10(values) for name, values in panels.items()}
        for first, second in (("original", "dequantized"), ("normalized", "quantized")):
            edges = _edges([logs[first], logs[second]], bins)
            for panel in (first, second):
                counts, _ = np.histogram(logs[panel], edges)
                frames.append(
                    pd.DataFrame(
                        {
                            "quantizer": q.spec,
                            "panel": panel,
                            "bin_left": edges[:-1],
                            "bin_right": edges[1:],
                            "count": counts,
                            "zeros": x.numel() - logs[panel].size,
                        }
                    )
                )
    return pd.concat(frames, ignore_index=True)


def map_curves(maps: Iterable[Map]) -> pd.DataFrame:
    """The value of each code of each map.

    Args:
        maps: the maps; at least one.

    Returns:
        One row per map and code: `map` (such as ``DE@8s``), `code`, `position` (code scaled to
        [0, 1]), `value` (codebook value, float64).

    Source: 8-bit optimizers, figure 6; 4-bit optimizers, figure 32.
    """
    frames = []
    for map_ in maps:
        values = map_.codebook().numpy()
        frames.append(
            pd.DataFrame(
                {
                    "map": map_.spec,
                    "code": np.arange(values.size),
                    "position": np.linspace(0, 1, values.size),
                    "value": values.astype(np.float64),
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def _log10(values: Tensor) -> NDArray[np.float64]:
    """log10 of the non-zero magnitudes."""
    flat = values.detach().reshape(-1).double().abs()
    return flat[flat > 0].log10().numpy()


def _edges(groups: list[NDArray[np.float64]], bins: int) -> NDArray[np.float64]:
    """Bin edges around all groups."""
    joined = np.concatenate(groups)
    if joined.size == 0:
        return np.linspace(-1, 0, bins + 1)
    low, high = float(joined.min()), float(joined.max())
    if high - low < 1e-6:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, bins + 1)
    edges[-1] = high  # linspace may end one rounding below
    return edges
