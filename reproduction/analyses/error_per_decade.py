"""Errors of second moments, by their distance below the largest one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from qmaps.algebra.quantizer import Quantizer, quantizer
from qmaps.errors import BadValueError
from qmaps.normalize.base import Normalizer
from qmaps.normalize.block import BlockWise

WITHIN = BlockWise(256)
"""Blocks of today's 8-bit optimizers."""


def error_per_decade(
    tensors: Mapping[str, Tensor],
    quantizers: Iterable[Quantizer | str],
    *,
    normalizer: Normalizer = WITHIN,
    decades: int = 8,
    eps: float = 1e-8,
) -> pd.DataFrame:
    """Relative errors of non-negative tensors, for each power of ten below the largest value.

    Decade 0 has the values above a tenth of the largest. Decade k has those above ``10**-(k + 1)``
    and up to ``10**-k`` of the largest. The last decade includes all smaller values. Zeros are left
    out, as they have no relative error.

    Args:
        tensors: second moments, or means of their rows or columns, by title; of any shape.
        quantizers: quantizers of the tensors, or their specs.
        normalizer: its scale counts as the largest value. The default takes the largest of each
            block of 256.
        decades: number of decades, at least 1.
        eps: the constant in ``1 / (sqrt(v) + eps)``, Adam's factor of the first moment.

    Returns:
        One row per quantizer and decade: `quantizer`, `decade` (from 0), `elements` (their
        number), `share` (of all elements other than 0), `mean_rel_error`, `median_rel_error`,
        `max_rel_error` (fractions of the value), `mean_update_error` (fraction of
        ``1 / (sqrt(v) + eps)``), `zeros` (fraction of the decade decoded to exactly 0). Errors and
        `zeros` are NaN where a decade has no elements.

    Raises:
        BadValueError: a value is negative, no value is above 0, `decades` is below 1, or
            `normalizer` works on logarithms and so gives no scales.

    Source: 8-bit Adafactor, "Quantization precision".

    >>> v = torch.logspace(-6, 0, 256)
    >>> frame = error_per_decade({"v": v}, ["B256/linear0@8u", "logB256/log2@8u"], decades=6)
    >>> errors = frame.pivot(index="decade", columns="quantizer", values="mean_rel_error")
    >>> (errors["B256/linear0@8u"].round(3) == 1).tolist()
    [False, False, False, True, True, True]
    >>> bool((errors["logB256/log2@8u"] < 0.03).all())
    True
    """
    if decades < 1:
        raise BadValueError(f"decades={decades} must be at least 1")
    if normalizer.log_domain:
        raise BadValueError(
            f"normalizer={normalizer.spec} works on logarithms and has no scales; use one that "
            "divides"
        )
    parsed = [quantizer(spec) for spec in quantizers]
    values = {title: _values(title, tensor) for title, tensor in tensors.items()}
    values = {title: x for title, x in values.items() if bool((x > 0).any())}
    if not values:
        raise BadValueError("tensors must hold at least one value above 0")
    chosen = [(x > 0) for x in values.values()]
    exact = _joined(list(values.values()), chosen)
    below = np.concatenate(
        [
            _decades(x, mask, normalizer, decades)
            for x, mask in zip(values.values(), chosen, strict=True)
        ]
    )
    frames = []
    for q in parsed:
        decoded = _joined([q.quantize(x).dequantize() for x in values.values()], chosen)
        frames.append(_rows(exact, decoded, below, decades, eps).assign(quantizer=q.spec))
    frame = pd.concat(frames, ignore_index=True)
    return frame[["quantizer", *frame.columns.drop("quantizer")]]


def _values(title: str, tensor: Tensor) -> Tensor:
    x = tensor.detach().to("cpu", torch.float32).contiguous()
    if bool((x < 0).any()):
        count = int((x < 0).sum())
        raise BadValueError(
            f"tensors[{title!r}] has {count} negative values; no value may be negative"
        )
    return x


def _joined(tensors: list[Tensor], chosen: list[Tensor]) -> NDArray[np.float64]:
    """Chosen elements of all tensors, in float64."""
    return np.concatenate(
        [x[mask].double().numpy() for x, mask in zip(tensors, chosen, strict=True)]
    )


def _decades(x: Tensor, mask: Tensor, normalizer: Normalizer, decades: int) -> NDArray[np.int64]:
    """Powers of ten between the largest value and each chosen element."""
    largest = normalizer.expand(normalizer.scales(x), tuple(x.shape)).expand(x.shape)[mask].double()
    decade = torch.floor(-torch.log10(x[mask].double() / largest)).long()
    return decade.clamp(0, decades - 1).numpy()


def _rows(
    exact: NDArray[np.float64],
    decoded: NDArray[np.float64],
    below: NDArray[np.int64],
    decades: int,
    eps: float,
) -> pd.DataFrame:
    relative = np.abs(decoded - exact) / exact
    # |h' - h| / h for h = 1 / (sqrt(v) + eps), without the inverse.
    update = np.abs(np.sqrt(exact) - np.sqrt(decoded)) / (np.sqrt(decoded) + eps)
    values = pd.DataFrame(
        {"decade": below, "relative": relative, "update": update, "zero": decoded == 0}
    )
    rows = values.groupby("decade").agg(
        elements=("relative", "size"),
        mean_rel_error=("relative", "mean"),
        median_rel_error=("relative", "median"),
        max_rel_error=("relative", "max"),
        mean_update_error=("update", "mean"),
        zeros=("zero", "mean"),
    )
    rows = rows.reindex(range(decades)).rename_axis("decade").reset_index()
    rows["elements"] = rows["elements"].fillna(0).astype(np.int64)
    rows.insert(2, "share", rows["elements"] / exact.size)
    return rows
