"""Finds out whether the outliers of a matrix lie in few rows or in few columns."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from torch import Tensor

from qmaps.errors import BadValueError

OUTLIERS = 0.01
LINES = 0.05


def outlier_lines(
    matrices: Mapping[str, Tensor], *, outliers: float = OUTLIERS, lines: float = LINES
) -> pd.DataFrame:
    """The share of the outliers in the rows, or the columns, with the most of them.

    Args:
        matrices: tensors of at least two dimensions by title; the dimensions after the first
            are flattened.
        outliers: share of the elements to count as outliers: those largest by magnitude, at
            least one. Above 0 and at most 1.
        lines: share of the rows, and of the columns, to take: those with the most
            outliers, at least one. Above 0 and at most 1.

    Returns:
        One row per matrix: `tensor` (title), `rows`, `cols` (shape of the matrix), `in_rows` and
        `in_cols` (share of the outliers in the chosen rows, and in the chosen columns).
        For outliers without a pattern both shares are little more than `lines`.

    Raises:
        BadValueError: a tensor has fewer than two dimensions or no elements, or a share is not
            above 0 and at most 1.

    Source: 4-bit optimizers, section 3: "outliers lie in fixed rows", "in fixed columns".

    >>> import torch
    >>> matrix = torch.ones(20, 20)
    >>> matrix[3] = 100.0
    >>> frame = outlier_lines({"one row": matrix}, outliers=0.05)
    >>> frame[["in_rows", "in_cols"]].round(2).values.tolist()
    [[1.0, 0.05]]
    """
    for name, share in (("outliers", outliers), ("lines", lines)):
        if not 0 < share <= 1:
            raise BadValueError(f"{name}={share!r} must be above 0 and at most 1")
    rows = []
    for title, tensor in matrices.items():
        if tensor.dim() < 2 or tensor.numel() == 0:
            raise BadValueError(
                f"matrices[{title!r}] has shape {tuple(tensor.shape)}; it must have at least two "
                "dimensions and one element"
            )
        matrix = tensor.detach().float().abs().flatten(1)
        count = max(1, round(outliers * matrix.numel()))
        largest = matrix.flatten().topk(count).indices
        shares = {
            name: _share(index.bincount(minlength=size), lines)
            for name, index, size in (
                ("in_rows", largest // matrix.shape[1], matrix.shape[0]),
                ("in_cols", largest % matrix.shape[1], matrix.shape[1]),
            )
        }
        rows.append({"tensor": title, "rows": matrix.shape[0], "cols": matrix.shape[1], **shares})
    return pd.DataFrame(rows)


def _share(hits: Tensor, lines: float) -> float:
    """The share of hits on the lines with most."""
    chosen = hits.topk(max(1, round(lines * hits.numel()))).values
    return float(chosen.sum() / hits.sum())
