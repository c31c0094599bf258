"""Error of the Adam update per code of the first moment."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from qmaps.algebra.pair import Pair
from qmaps.analyze._states import MIN_SIZE, States
from qmaps.analyze._updates import accumulate


def first_code_error(
    states: States, pairs: Iterable[Pair | str], *, min_quantized_size: int = MIN_SIZE
) -> pd.DataFrame:
    """The update's mean errors for each code of the first moment.

    Args:
        states: captured states, their path, or tensors by parameter and state name.
        pairs: quantizers of both moments, such as ``"B2048/DE@8s + B2048/DE@8u"``; at least one.
            With ``"... + 32-bit"`` the second moment stays exact, and all errors are the first's.
        min_quantized_size: parameters of at most this many elements are left out.

    Returns:
        One row per pair of quantizers and code: `quantizer`, `code`, `value` (codebook value),
        `position` (code scaled to [-1, 1]), `count` (elements), `use` (share of all elements,
        0 to 1), `mean_abs_error` (of u = m / (sqrt(v) + eps)), `mean_rel_error` (fraction of
        |u|, over elements with u != 0). Errors of unused codes are NaN.

    Raises:
        SpecError: a pair does not parse, or leaves the first moment in 32 bits.
        CaptureError: no parameter is large enough or has both moments, or a moment holds NaN or
            infinity.

    Source: 8-bit optimizers, figure 5.
    """
    frames = []
    for spec in pairs:
        pair = Pair.parse(spec)
        grid = accumulate(states, pair, min_quantized_size, exact_second=True)
        count, nonzero = grid.count.sum(1).numpy(), grid.nonzero.sum(1).numpy()
        with np.errstate(invalid="ignore"):
            absolute = grid.absolute.sum(1).numpy() / count
            relative = grid.relative.sum(1).numpy() / nonzero
        frames.append(
            pd.DataFrame(
                {
                    "quantizer": pair.spec,
                    "code": np.arange(count.size),
                    "value": grid.first.numpy(),
                    "position": np.linspace(-1, 1, count.size),
                    "count": count.astype(np.int64),
                    "use": count / count.sum(),
                    "mean_abs_error": absolute,
                    "mean_rel_error": relative,
                }
            )
        )
    return pd.concat(frames, ignore_index=True)
