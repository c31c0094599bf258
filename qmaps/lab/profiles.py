"""Magnitudes of each tensor's moments, and positions of the large ones, for pages."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from qmaps import analyze
from qmaps.analyze._states import States, adam_pairs

PER_DECADE = 4
"""Bins of a histogram per factor of 10."""
CELLS = 48
"""Largest number of cells of a picture along each axis."""
DARKEST = 1e4
"""Magnitude, in medians, from which on a picture's cells have the last colour."""


def profiles(states: States, *, min_quantized_size: int) -> pd.DataFrame:
    """Profiles of the moments of each parameter that is large enough.

    Args:
        states: captured states, their path, or tensors by parameter and state name.
        min_quantized_size: parameters of at most this many elements are left out.

    Returns:
        One row per parameter and moment: `parameter`, `state`, `shape` (list of ints), `lowest`
        (number of the first bin: bin b holds magnitudes from 10^(b/4) to 10^((b+1)/4)), `counts`
        (elements in each bin), `zeros` (elements that are 0), `picture_rows`, `picture_cols` and
        `picture` (bytes, row by row: 0 for a magnitude of at most the median, 255 for 10,000 times
        it, in the logarithm; the largest element of each cell; empty for fewer than two
        dimensions), `in_rows` and `in_cols` (see `qmaps.analyze.outlier_lines`; NaN for fewer than
        two dimensions).

    Raises:
        CaptureError: as `qmaps.analyze.update_error`.
    """
    return pd.DataFrame(list(_rows(states, min_quantized_size)))


def _rows(states: States, min_size: int) -> Iterator[dict[str, object]]:
    for parameter, m, v, _ in adam_pairs(states, min_size):
        for state, x in (("exp_avg", m), ("exp_avg_sq", v)):
            lowest, counts = _histogram(x)
            yield {
                "parameter": parameter,
                "state": state,
                "shape": list(x.shape),
                "lowest": lowest,
                "counts": counts,
                "zeros": int((x == 0).sum()),
                **_picture(x),
            }


def _histogram(x: Tensor) -> tuple[int, list[int]]:
    """Number of the first bin, and the counts from there on; none for zeros alone."""
    magnitudes = x.abs().reshape(-1)
    logs = magnitudes[magnitudes > 0].log10_()
    if not logs.numel():
        return 0, []
    bins = logs.mul_(PER_DECADE).floor_().to(torch.int64)
    lowest = int(bins.min())
    return lowest, torch.bincount(bins - lowest).tolist()


def _picture(x: Tensor) -> dict[str, object]:
    if x.dim() < 2:
        none = float("nan")
        return {
            "picture_rows": 0, "picture_cols": 0, "picture": b"", "in_rows": none, "in_cols": none
        }  # fmt: skip
    cells = analyze.outliers({"": x}, cells=CELLS)
    lines = analyze.outlier_lines({"": x}).iloc[0]
    with np.errstate(divide="ignore"):
        shades = np.log10(cells["magnitude"].to_numpy()) / np.log10(DARKEST)
    return {
        "picture_rows": cells["row"].nunique(),
        "picture_cols": cells["col"].nunique(),
        "picture": np.round(255 * shades.clip(0, 1)).astype(np.uint8).tobytes(),
        "in_rows": float(lines["in_rows"]),
        "in_cols": float(lines["in_cols"]),
    }
