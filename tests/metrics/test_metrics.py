from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

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
            "bias": 0.25 / math.sqrt(21 / 4),
        }
    )


def rows(values: list[tuple[float, float, int]]) -> tuple[torch.Tensor, ...]:
    x, decoded, codes = zip(*values, strict=True)
    return torch.tensor(x), torch.tensor(decoded), torch.tensor(codes, dtype=torch.int32)


number = st.floats(-100, 100, width=32)


@given(st.lists(st.tuples(number, number | st.just(0.0), st.integers(0, 7)), min_size=1))
def test_every_metric_against_numpy(values: list[tuple[float, float, int]]) -> None:
    x, decoded, codes = rows(values)
    a, b = x.double().numpy(), decoded.double().numpy()
    counts = np.bincount(codes.numpy(), minlength=8)
    share = counts[counts > 0] / len(values)
    nonzero = a != 0

    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = {
            "mean_abs_error": np.abs(a - b).mean(),
            "max_abs_error": np.abs(a - b).max(),
            "mean_rel_error": (np.abs(a - b) / np.abs(a))[nonzero].mean(),
            "mse": ((a - b) ** 2).mean(),
            "sqnr_db": 10 * np.log10((a**2).sum() / ((a - b) ** 2).sum()),
            "code_entropy": -(share * np.log2(share)).sum(),
            "codes_used": (counts > 0).sum() / 8,
            "zeroed_share": (b[nonzero] == 0).mean(),
            "bias": (b - a).mean() / np.sqrt((a**2).mean()),
        }
    if not nonzero.any():
        expected["sqnr_db"] = expected["bias"] = math.nan
    measured = metrics.measure(x, decoded, codes, 8)
    assert measured == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True)
    as_matrix = metrics.measure(x[:, None], decoded[:, None], codes[:, None], 8)
    assert as_matrix == pytest.approx(measured, rel=1e-12, nan_ok=True)


def test_sums_are_taken_in_float64() -> None:
    x = torch.full((1 << 20,), 1.0)
    decoded = torch.full_like(x, 1.0 + 2.0**-12)
    codes = torch.zeros(1 << 20, dtype=torch.int32)
    measured = metrics.measure(x, decoded, codes, 2)
    assert measured["mse"] == 2.0**-24
    assert measured["mean_rel_error"] == 2.0**-12
    huge = metrics.measure(torch.tensor([3e38]), torch.tensor([-3e38]), codes[:1], 2)
    assert huge["max_abs_error"] == pytest.approx(6e38)
    assert huge["mse"] == pytest.approx(3.6e77)


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


def test_a_metric_of_sums_may_be_registered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "METRICS", dict(metrics.METRICS))
    monkeypatch.setattr(metrics, "SUMMED", dict(metrics.SUMMED))
    for share in (1.0, 2.0):
        metrics.register("mine", None, lambda sums, share=share: share * sums.numel)
    assert metrics.measure(X, DECODED, CODES, 8)["mine"] == 8.0
    metrics.register("mine", lambda *values: -1.0)
    assert metrics.measure(X, DECODED, CODES, 8)["mine"] == -1.0
    with pytest.raises(ValueError, match="metric 'none' needs a function none or from_sums"):
        metrics.register("none", None)
