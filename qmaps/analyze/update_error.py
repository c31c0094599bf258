"""Errors of the Adam update under pairs of quantizers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from qmaps.analyze._states import MIN_SIZE, States, adam_pairs
from qmaps.pair import Pair, adam_update
from qmaps.quantizer import Quantizer

QUANTILES = {"median": 0.5, "p99": 0.99, "p999": 0.999}


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
        pairs: such as ``"B2048/DE@8s + B2048/DE@8u"``.
        min_quantized_size: parameters of at most this many elements are left out.
        progress: called with the number of pairs done and the number of all.

    Returns:
        Columns `quantizer`, `numel`, `bits_per_element` (mean of the two moments) and those
        of `error_columns`. Holds 8 bytes per element in memory.

    Source: 8-bit optimizers, table 6 and appendix C.
    """
    parsed = [Pair.parse(pair) for pair in pairs]
    rows = []
    for done, pair in enumerate(parsed, start=1):
        absolute, relative, zeroed, nbytes, numel = [], [], 0, 0, 0
        for _, m, v, eps in adam_pairs(states, min_quantized_size):
            m_decoded, m_bytes = decoded(m, pair.first)
            v_decoded, v_bytes = decoded(v, pair.second)
            errors = element_errors(adam_update(m, v, eps), adam_update(m_decoded, v_decoded, eps))
            absolute.append(errors[0])
            relative.append(errors[1])
            zeroed += collapsed(m_decoded, v, v_decoded)
            nbytes += m_bytes + v_bytes
            numel += m.numel()
        rows.append(
            {
                "quantizer": pair.spec,
                "numel": numel,
                "bits_per_element": 4 * nbytes / numel,
                **error_columns(np.concatenate(absolute), np.concatenate(relative)),
                "zeroed_share": zeroed / numel,
            }
        )
        if progress:
            progress(done, len(parsed))
    return pd.DataFrame(rows)


def decoded(x: Tensor, q: Quantizer | None) -> tuple[Tensor, int]:
    """`x` after a quantizer or None, and the bytes that it takes quantized."""
    if q is None:
        return x, 4 * x.numel()
    t = q.quantize(x)
    return t.dequantize(), t.nbytes


def element_errors(
    exact: Tensor, approximate: Tensor
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Absolute error of every element, and relative error of those whose exact value is not 0."""
    exact = exact.reshape(-1).double()
    error = (exact - approximate.reshape(-1).double()).abs()
    kept = exact != 0
    relative = error[kept] / exact[kept].abs()
    return error.float().numpy(), relative.float().numpy()


def collapsed(m_decoded: Tensor, v: Tensor, v_decoded: Tensor) -> int:
    """How many second moments decode to 0 under a first moment that does not.

    Their step becomes m / eps: the zero-point problem.
    """
    return int(((v != 0) & (v_decoded == 0) & (m_decoded != 0)).sum())


def error_columns(
    absolute: NDArray[np.float32],
    relative: NDArray[np.float32],
) -> dict[str, float]:
    """``{mean,median,p99,p999,max}_{abs,rel}_error`` of an update.

    Relative errors are fractions ``|u - u_quantized| / |u|`` over elements with u != 0. Their
    mean is ruled by updates near zero, so the median stands beside it. Quantiles are nearest
    ranks: the smallest value that at least that share of elements does not exceed.
    """
    columns: dict[str, float] = {}
    for kind, values in (("abs", absolute), ("rel", relative)):
        columns |= {f"{name}_{kind}_error": value for name, value in _statistics(values).items()}
    return columns


def _statistics(values: NDArray[np.float32]) -> dict[str, float]:
    if values.size == 0:
        return dict.fromkeys(("mean", *QUANTILES, "max"), math.nan)
    ranks = {name: math.ceil(q * values.size) - 1 for name, q in QUANTILES.items()}
    ordered = np.partition(values, sorted({*ranks.values(), values.size - 1}))
    return {
        "mean": float(values.mean(dtype=np.float64)),
        **{name: float(ordered[rank]) for name, rank in ranks.items()},
        "max": float(ordered[-1]),
    }
