"""Numbers in words of a finding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qmaps.lab.report.claims import number, percent

__all__ = ["mean_and_error", "number", "percent"]


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard error; the standard error of one value is NaN."""
    array = np.asarray(values, dtype=float)
    spread = float(array.std(ddof=1) / array.size**0.5) if array.size > 1 else float("nan")
    return float(array.mean()), spread
