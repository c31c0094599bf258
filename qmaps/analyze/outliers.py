"""Positions of the large elements of a moment matrix, and their share in few rows or columns."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from qmaps.analyze.states import joined
from qmaps.errors import BadValueError

CELLS = 256
OUTLIERS = 0.01
"""Share of the elements that count as outliers."""
LINES = 0.05
"""Share of the rows, or columns, in which they are counted."""


def outliers(matrices: Mapping[str, Tensor], *, cells: int = CELLS) -> pd.DataFrame:
    """Magnitudes of matrices relative to their median, reduced by maximum to a grid of cells.

    Args:
        matrices: tensors of at least two dimensions by title, on the CPU; the dimensions after
            the first are flattened.
        cells: largest number of cells along each axis, at least 1.

    Returns:
        One row per matrix and cell: `tensor` (title), `row`, `col` (index of the cell's first
        element), `rows`, `cols` (shape of the matrix), `magnitude` (largest |x| of the cell
        over the median |x| of the matrix's non-zero elements).

    Raises:
        BadValueError: a tensor has fewer than two dimensions or no elements.

    Source: 4-bit optimizers, figures 1 and 2.
    """
    grids = []
    for title, tensor in matrices.items():
        matrix = _magnitudes(title, tensor)
        rows, cols = matrix.shape
        row_step, col_step = -(-rows // cells), -(-cols // cells)
        padded = torch.nn.functional.pad(matrix, (0, -cols % col_step, 0, -rows % row_step))
        pooled = padded.view(-1, row_step, padded.shape[1] // col_step, col_step).amax((1, 3))
        nonzero = matrix[matrix > 0]
        median = float(nonzero.median()) if nonzero.numel() else 1.0
        row, col = np.divmod(np.arange(pooled.numel()), pooled.shape[1])
        columns = {"tensor": title, "row": row * row_step, "col": col * col_step}
        magnitude = pooled.reshape(-1).double().numpy() / median
        grids.append({**columns, "rows": rows, "cols": cols, "magnitude": magnitude})
    return joined(grids)


def outlier_lines(matrices: Mapping[str, Tensor]) -> pd.DataFrame:
    """The share of the outliers in the rows, or the columns, with the most of them.

    Outliers are the 1 % of the elements that are largest by magnitude, at least one. They are
    counted in the 5 % of the rows, and of the columns, with the most of them, at least one.

    Args:
        matrices: tensors of at least two dimensions by title; the dimensions after the first
            are flattened.

    Returns:
        One row per matrix: `tensor` (title), `rows`, `cols` (shape of the matrix), `in_rows` and
        `in_cols` (share of the outliers in the chosen rows, and in the chosen columns).
        For outliers without a pattern both shares are little more than 0.05.

    Raises:
        BadValueError: a tensor has fewer than two dimensions or no elements.

    Source: 4-bit optimizers, section 3: "outliers lie in fixed rows", "in fixed columns".

    >>> import torch
    >>> matrix = torch.ones(100, 20)
    >>> matrix[3] = 100.0
    >>> frame = outlier_lines({"one row": matrix})
    >>> frame[["in_rows", "in_cols"]].round(2).values.tolist()
    [[1.0, 0.05]]
    """
    rows = []
    for title, tensor in matrices.items():
        matrix = _magnitudes(title, tensor)
        count = max(1, round(OUTLIERS * matrix.numel()))
        largest = matrix.flatten().topk(count).indices
        shares = {
            name: _share(index.bincount(minlength=size))
            for name, index, size in (
                ("in_rows", largest // matrix.shape[1], matrix.shape[0]),
                ("in_cols", largest % matrix.shape[1], matrix.shape[1]),
            )
        }
        rows.append({"tensor": title, "rows": matrix.shape[0], "cols": matrix.shape[1], **shares})
    return pd.DataFrame(rows)


def _share(hits: Tensor) -> float:
    """The share of hits on the lines with most."""
    chosen = hits.topk(max(1, round(LINES * hits.numel()))).values
    return float(chosen.sum() / hits.sum())


def _magnitudes(title: str, tensor: Tensor) -> Tensor:
    """|x| as a float32 matrix."""
    if tensor.dim() < 2 or tensor.numel() == 0:
        raise BadValueError(
            f"matrices[{title!r}] has shape {tuple(tensor.shape)}; it must have at least two "
            "dimensions and one element"
        )
    return tensor.detach().float().abs().flatten(1)
