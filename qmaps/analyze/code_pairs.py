"""Use and error of the Adam update per pair of codes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from qmaps.algebra.pair import Pair
from qmaps.analyze._states import MIN_SIZE, States
from qmaps.analyze._updates import accumulate


def code_pairs(
    states: States, pairs: Iterable[Pair | str], *, min_quantized_size: int = MIN_SIZE
) -> pd.DataFrame:
    """Use of each (first, second) pair of codes, and the error of its update.

    Args:
        states: captured states, their path, or tensors by parameter and state name.
        pairs: quantizers of both moments, such as ``"B2048/DE@8s + B2048/DE@8u"``; at least one.
        min_quantized_size: parameters of at most this many elements are left out.

    Returns:
        One row per pair of quantizers and pair of codes in use: `quantizer`,
        `code_first`, `code_second`, `value_first`, `value_second` (codebook values),
        `size_first`, `size_second` (codebook sizes), `count` (elements), `use` (share of all
        elements, 0 to 1), `mean_abs_error` (of u = m / (sqrt(v) + eps)), `mean_rel_error`
        (fraction of |u|, over elements with u != 0; NaN where there are none).

    Raises:
        SpecError: a pair does not parse, or leaves a moment in 32 bits.
        CaptureError: no parameter is large enough or has both moments, or a moment holds NaN or
            infinity.

    Source: 8-bit optimizers, figure 4.
    """
    frames = []
    for spec in pairs:
        pair = Pair.parse(spec)
        grid = accumulate(states, pair, min_quantized_size)
        first, second = (index.numpy() for index in grid.count.nonzero(as_tuple=True))
        count, nonzero = grid.count.numpy()[first, second], grid.nonzero.numpy()[first, second]
        with np.errstate(invalid="ignore"):
            relative = grid.relative.numpy()[first, second] / nonzero
        frames.append(
            pd.DataFrame(
                {
                    "quantizer": pair.spec,
                    "code_first": first,
                    "code_second": second,
                    "value_first": grid.first.numpy()[first],
                    "value_second": grid.second.numpy()[second],
                    "size_first": grid.first.numel(),
                    "size_second": grid.second.numel(),
                    "count": count.astype(np.int64),
                    "use": count / count.sum(),
                    "mean_abs_error": grid.absolute.numpy()[first, second] / count,
                    "mean_rel_error": relative,
                }
            )
        )
    return pd.concat(frames, ignore_index=True)
