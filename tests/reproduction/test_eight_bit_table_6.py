"""Table 6 of the 8-bit paper: two ways to average an error, and a linear map without zero."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from qmaps.capture import CapturedStates
from reproduction.eight_bit import table_6
from reproduction.eight_bit.table_6 import (
    ABSOLUTE,
    CODES,
    ELEMENTS,
    MAPS,
    ORDER,
    RELATIVE,
    TYPICAL,
    WITH_ZERO,
)  # fmt: skip
from reproduction.exhibit import explain


def errors(quantile: list[float], absolute: list[float]) -> pd.DataFrame:
    """Two seeds; absolute errors in the order of `ORDER`."""
    return pd.DataFrame(
        {"states": "grid", "seed": seed, "map": name, ELEMENTS: 9.0,
         CODES: -ORDER.index(name) if name in ORDER else 1,
         RELATIVE: quantile[seed] if name == "quantile" else 6.5,
         ABSOLUTE: dict(zip(ORDER, absolute, strict=True)).get(name, 1.0), TYPICAL: 0.1}
        for seed in (0, 1) for name in MAPS
    )  # fmt: skip


def control(narrow: list[float], wide: list[float]) -> pd.DataFrame:
    """Errors in the order of `ORDER`, of numbers that lie close together and far apart."""
    return pd.DataFrame(
        {"deviation": deviation, "decades": 5.0, TYPICAL: 0.1, "map": name, "error": error}
        for deviation, found in ((0.0, narrow), (2.0, wide))
        for name, error in zip(ORDER, found, strict=True)
    )


@pytest.mark.parametrize(
    ("quantile", "untold"),
    [([5.0, 9.0], True), ([3.0, 3.1], False), ([20.0, 20.1], False)],
)
def test_seeds_that_cannot_order_two_maps_explain_a_wrong_order(
    quantile: list[float], untold: bool
) -> None:
    finding = table_6.find(
        {"errors": errors(quantile, [4, 3, 2, 1]), "spread": control([4, 3, 2, 1], [4, 3, 2, 1])}
    )
    of_quantile, of_absolute = finding.differences
    assert of_quantile.elsewhere is untold
    assert of_absolute.elsewhere is False
    assert f"by {quantile[0]:g} to {quantile[1]:g} % over our seeds" in of_quantile.why


@pytest.mark.parametrize(
    ("narrow", "wide", "explained"),
    [([1, 8, 2, 5], [1, 4, 5, 11], True), ([1, 8, 2, 5], [1, 8, 2, 5], False),
     ([1, 4, 5, 11], [1, 4, 5, 11], False)],
)  # fmt: skip
def test_only_numbers_far_apart_with_the_papers_order_explain_another(
    narrow: list[float], wide: list[float], explained: bool
) -> None:
    frames = {"errors": errors([5.0, 9.0], [4, 3, 2, 1]), "spread": control(narrow, wide)}
    finding = explain(table_6.find(frames))
    assert finding.numbers is not None
    verdicts = finding.numbers.set_index("quantity").loc[ABSOLUTE, "verdict"].tolist()
    assert ("contradicts" in verdicts) is not explained
    assert ("another model, data or machine" in verdicts) is explained


def test_states_with_the_papers_order_are_counted() -> None:
    frames = {"errors": errors([5.0, 9.0], [1, 2, 3, 4]), "spread": control([1] * 4, [1] * 4)}
    said = table_6.find(frames).differences[1].why
    assert "over elements for 2 of 2 states (2 without the linear map)" in said


def test_numbers_far_apart_have_the_papers_order() -> None:
    found = table_6.spread().set_index(["deviation", "map"])["error"]
    assert not found[0.0][ORDER].is_monotonic_increasing
    assert found[2.0][ORDER].is_monotonic_increasing


def test_errors_over_codes_and_over_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two codes in use: 1, hit exactly by one element, and 1/127, by three of 1.5 times that.
    m = torch.tensor([1.0, *[1.4 / 127] * 3, 0.0])
    monkeypatch.setattr(table_6, "adam_pairs", lambda *_: [("w", m, torch.ones(5), 1)])
    found = table_6.read(CapturedStates.__new__(CapturedStates)).set_index("map").loc[WITH_ZERO]
    off = 0.4 / 127
    assert found[ELEMENTS] == pytest.approx(100 * 3 / 4 * 0.4 / 1.4, rel=1e-5)
    assert found[RELATIVE] == pytest.approx(100 / 2 * 0.4 / 1.4, rel=1e-5)
    assert found[ABSOLUTE] == pytest.approx(1e10 * 3 / 4 * off, rel=1e-4)
    assert found[CODES] == pytest.approx(1e10 / 2 * off, rel=1e-4)
    assert found[TYPICAL] == pytest.approx((1 + 3 * 1.4 / 127) / 4, rel=1e-5)


def test_only_a_map_without_zero_errs_by_more_than_all(monkeypatch: pytest.MonkeyPatch) -> None:
    m = torch.cat([torch.ones(1), torch.full((99,), 1e-4)])
    monkeypatch.setattr(table_6, "adam_pairs", lambda *_: [("w", m, torch.ones(100), 1)])
    found = table_6.read(CapturedStates.__new__(CapturedStates)).set_index("map")[ELEMENTS]
    assert found[WITH_ZERO] == pytest.approx(99.0)
    assert found["linear"] > 1000
