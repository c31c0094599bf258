"""Histograms of tensors on their way through quantizers, and the curves of maps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from qmaps.algebra.low_rank import low_rank_of, product
from qmaps.algebra.pair import UNQUANTIZED, distinct
from qmaps.algebra.quantizer import Quantizer, quantizer
from qmaps.analyze.states import MIN_SIZE, States, adam_pairs, joined
from qmaps.engines.reference import decode
from qmaps.errors import BadValueError
from qmaps.maps.base import Map

BINS = 120
H_BINS = 140
EPS = 1e-6
"""The paper's constant in h(v) = 1 / (sqrt(v) + 1e-6)."""


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
    codes.

    Source: 4-bit optimizers, figures 20 to 31.
    """
    histograms: list[dict[str, Any]] = []
    for q in distinct(map(quantizer, quantizers)):
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
                columns = {"quantizer": q.spec, "panel": panel, **_binned(edges, counts)}
                histograms.append({**columns, "zeros": x.numel() - logs[panel].size})
    return joined(histograms)


def inverse_sqrt(
    states: States, quantizers: Iterable[Quantizer | str], *, min_quantized_size: int = MIN_SIZE
) -> pd.DataFrame:
    """``h(v) = 1 / (sqrt(v) + 1e-6)`` in 32 bits and after each quantizer.

    A second moment that decodes to 0 lands at 1e6: the zero-point problem is seen as a spike.
    Elements of 0 before quantization (without any gradient) are
    left out.

    Args:
        states: captured states, their path, or tensors by parameter and state name.
        quantizers: quantizers of the second moment, or their specs.
        min_quantized_size: parameters of at most this many elements are left out.

    Returns:
        One row per quantizer (``32-bit`` first) and bin, 140 of equal width from the smallest h to
        1e6: `quantizer`, `bin_left`, `bin_right` (log10 h), `count` (elements), `share` (of the
        non-zero elements), `zero_share` (share of these that decodes to 0; the same on every row of
        a quantizer).

    Raises:
        BadValueError: all second moments are 0.
        CaptureError: no parameter is large enough or has both moments, or a moment holds NaN or
            infinity.

    Source: 4-bit optimizers, figure 3.
    """
    parsed = distinct(map(quantizer, quantizers))
    moments = [v for _, _, v, _ in adam_pairs(states, min_quantized_size)]
    if not any(bool((v != 0).any()) for v in moments):
        raise BadValueError("states hold no second moment other than 0")
    variants = {UNQUANTIZED: moments}
    variants |= {q.spec: [q.quantize(v).dequantize() for v in moments] for q in parsed}
    nonzero = [v != 0 for v in moments]
    logs = {
        name: np.concatenate(
            [
                -(v[chosen].double().sqrt() + EPS).log10().numpy()
                for v, chosen in zip(values, nonzero, strict=True)
            ]
        )
        for name, values in variants.items()
    }
    low = min(float(values.min()) for values in logs.values())
    edges = np.linspace(low, 6.0 + 1e-9, H_BINS + 1)
    histograms = []
    for name, values in logs.items():
        counts, _ = np.histogram(values, edges)
        zeroed = sum(int((w[c] == 0).sum()) for w, c in zip(variants[name], nonzero, strict=True))
        shares = {"share": counts / values.size, "zero_share": zeroed / values.size}
        histograms.append({"quantizer": name, **_binned(edges, counts), **shares})
    return joined(histograms)


def map_curves(maps: Iterable[Map]) -> pd.DataFrame:
    """The value of each code of each map.

    Args:
        maps: the maps; at least one.

    Returns:
        One row per map and code: `map` (such as ``DE@8s``), `code`, `position` (code scaled to
        [0, 1]), `value` (codebook value, float64).

    Source: 8-bit optimizers, figure 6; 4-bit optimizers, figure 32.
    """
    curves = []
    for map_ in distinct(maps):
        values = map_.codebook().numpy()
        position = np.linspace(0, 1, values.size)
        columns = {"map": map_.spec, "code": np.arange(values.size), "position": position}
        curves.append({**columns, "value": values.astype(np.float64)})
    return joined(curves)


def _binned(edges: NDArray[np.float64], counts: NDArray[Any]) -> dict[str, Any]:
    """The columns of a histogram's bins."""
    return {"bin_left": edges[:-1], "bin_right": edges[1:], "count": counts}


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
    return np.linspace(low, high, bins + 1)
