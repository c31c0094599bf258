"""Histograms of the inverse square root of the second moment."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from qmaps.algebra.pair import UNQUANTIZED
from qmaps.algebra.quantizer import Quantizer, quantizer
from qmaps.analyze._states import MIN_SIZE, States, adam_pairs
from qmaps.errors import BadValueError

BINS = 140
EPS = 1e-6
"""The paper's constant in h(v) = 1 / (sqrt(v) + 1e-6)."""


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
    parsed = [quantizer(spec) for spec in quantizers]
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
    edges = np.linspace(low, 6.0 + 1e-9, BINS + 1)
    frames = []
    for name, values in logs.items():
        counts, _ = np.histogram(values, edges)
        zeroed = sum(int((w[c] == 0).sum()) for w, c in zip(variants[name], nonzero, strict=True))
        frames.append(
            pd.DataFrame(
                {
                    "quantizer": name,
                    "bin_left": edges[:-1],
                    "bin_right": edges[1:],
                    "count": counts,
                    "share": counts / values.size,
                    "zero_share": zeroed / values.size,
                }
            )
        )
    return pd.concat(frames, ignore_index=True)
