from __future__ import annotations

import math

import pytest
import torch

from qmaps import metrics

X = torch.tensor([0.0, 1.0, -2.0, 4.0])
DECODED = torch.tensor([0.0, 0.0, -1.0, 5.0])
CODES = torch.tensor([2, 2, 1, 3], dtype=torch.int32)


def test_every_metric_by_hand() -> None:
    assert metrics.measure(X, DECODED, CODES, 8) == pytest.approx(
        {
            "mean_abs_error": 0.75,
            "max_abs_error": 1.0,
            "mean_rel_error": (1 + 0.5 + 0.25) / 3,
            "mse": 0.75,
            "sqnr_db": 10 * math.log10(21 / 3),
            "code_entropy": 1.5,
            "codes_used": 3 / 8,
            "zeroed_share": 1 / 3,
        }
    )


def test_nothing_lost_and_nothing_there() -> None:
    exact = metrics.measure(X, X, CODES, 8)
    assert exact["sqnr_db"] == math.inf
    assert exact["mse"] == exact["mean_rel_error"] == exact["zeroed_share"] == 0
    zero = metrics.measure(torch.zeros(3), torch.zeros(3), torch.zeros(3, dtype=torch.int32), 2)
    assert math.isnan(zero["sqnr_db"])
    assert math.isnan(zero["mean_rel_error"])
    assert math.isnan(zero["zeroed_share"])
    empty = metrics.measure(torch.zeros(0), torch.zeros(0), torch.zeros(0, dtype=torch.int32), 2)
    assert all(math.isnan(value) for value in empty.values())
    assert set(empty) == set(exact)
