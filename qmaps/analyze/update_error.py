"""Errors of the Adam update under pairs of quantizers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pandas as pd

from qmaps.algebra.pair import Pair
from qmaps.analyze._states import MIN_SIZE, States, adam_pairs
from qmaps.analyze._updates import Exact, UpdateErrors, quantized
from qmaps.optim.presets import pair_of


def update_error(
    states: States,
    pairs: Iterable[Pair | str],
    *,
    min_quantized_size: int = MIN_SIZE,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Errors of the Adam update over all parameters together, one row per pair.

    Args:
        states: captured states, their path, or tensors by parameter and state name.
        pairs: quantizers of both moments, such as ``"B2048/DE@8s + B2048/DE@8u"``, or names of
            presets.
        min_quantized_size: parameters of at most this many elements are left out.
        progress: called after each pair with the number of pairs done and the number of all.

    Returns:
        Columns `quantizer`, `numel` (elements of all parameters), `bits_per_element` (mean of the
        two moments), ``{mean,median,p99,p999,max}_{abs,rel}_error`` and `zeroed_share`. The last
        is the share of elements whose second moment is not 0 but decodes to 0, under a first
        moment that decodes to another value than 0.

    Raises:
        SpecError: a pair does not parse; nothing has been measured.
        CaptureError: no parameter is large enough or has both moments, or a moment holds NaN or
            infinity.

    The update is u = m / (sqrt(v) + eps). Relative errors are fractions ``|u - u_quantized| / |u|``
    over elements with u != 0. Updates near zero dominate their mean, so the median stands beside
    it. Quantiles are nearest ranks: the smallest error that at least that share of the elements
    does not exceed. The function holds 8 bytes per element in memory.

    Source: 8-bit optimizers, table 6 and appendix C.
    """
    parsed = [pair_of(pair) for pair in pairs]
    errors = UpdateErrors()
    rows = []
    for done, pair in enumerate(parsed, start=1):
        errors.clear()
        nbytes, numel = 0, 0
        for _, m, v, eps in adam_pairs(states, min_quantized_size):
            first, m_bytes = quantized(m, pair.first)
            second, v_bytes = quantized(v, pair.second)
            errors.add(Exact.of(m, v, eps), first, second)
            nbytes += m_bytes + v_bytes
            numel += m.numel()
        rows.append(
            {
                "quantizer": pair.spec,
                "numel": numel,
                "bits_per_element": 4 * nbytes / numel,
                **errors.columns(),
            }
        )
        if progress:
            progress(done, len(parsed))
    return pd.DataFrame(rows)
