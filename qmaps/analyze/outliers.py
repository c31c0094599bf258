"""Positions of the large elements of a moment matrix."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from qmaps.errors import BadValueError

CELLS = 256


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
    frames = []
    for title, tensor in matrices.items():
        if tensor.dim() < 2 or tensor.numel() == 0:
            raise BadValueError(
                f"matrices[{title!r}] has shape {tuple(tensor.shape)}; it must have at least two "
                "dimensions and one element"
            )
        matrix = tensor.detach().float().abs().flatten(1)
        rows, cols = matrix.shape
        row_step, col_step = -(-rows // cells), -(-cols // cells)
        padded = torch.nn.functional.pad(matrix, (0, -cols % col_step, 0, -rows % row_step))
        pooled = padded.view(-1, row_step, padded.shape[1] // col_step, col_step).amax((1, 3))
        nonzero = matrix[matrix > 0]
        median = float(nonzero.median()) if nonzero.numel() else 1.0
        row, col = np.divmod(np.arange(pooled.numel()), pooled.shape[1])
        frames.append(
            pd.DataFrame(
                {
                    "tensor": title,
                    "row": row * row_step,
                    "col": col * col_step,
                    "rows": rows,
                    "cols": cols,
                    "magnitude": pooled.reshape(-1).double().numpy() / median,
                }
            )
        )
    return pd.concat(frames, ignore_index=True)
