"""Outliers in rows and columns."""

from __future__ import annotations

import pytest
import torch

from qmaps import analyze
from qmaps.errors import BadValueError


def noise(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


def shares(matrix: torch.Tensor) -> tuple[float, float]:
    frame = analyze.outlier_lines({"m": matrix})
    return frame["in_rows"].item(), frame["in_cols"].item()


def test_rows_and_columns_are_distinguished() -> None:
    rows, columns = noise(200, 100), noise(200, 100)
    rows[[3, 50, 77]] *= 100
    columns[:, [2, 9]] *= 100
    in_rows, in_columns = shares(rows)
    assert in_rows == 1.0
    assert in_columns < 0.2
    in_rows, in_columns = shares(columns)
    assert in_columns == 1.0
    assert in_rows < 0.2


def test_noise_has_no_pattern_and_a_transpose_swaps_both() -> None:
    in_rows, in_columns = shares(noise(200, 100))
    assert 0.05 < in_rows < 0.25
    assert 0.05 < in_columns < 0.25
    assert shares(noise(200, 100).T) == (in_columns, in_rows)


def test_bad_input() -> None:
    with pytest.raises(BadValueError) as caught:
        analyze.outlier_lines({"bias": torch.ones(3)})
    assert str(caught.value) == (
        "matrices['bias'] has shape (3,); it must have at least two dimensions and one element"
    )
