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

pytestmark = pytest.mark.slow


def errors(quantile: list[float], absolute: list[float]) -> pd.DataFrame:
    """Two seeds; absolute errors in the order of `ORDER`."""
    return pd.DataFrame(
        {"states": "grid", "seed": seed, "map": name, ELEMENTS: 9.0,
         CODES: -ORDER.index(name) if name in ORDER else 1,
         RELATIVE: quantile[seed] if name == "quantile" else 6.5,
         ABSOLUTE: dict(zip(ORDER, absolute, strict=True)).get(name, 1.0), TYPICAL: 0.1}
        for seed in (0, 1) for name in MAPS
    )  # fmt: skip


@pytest.mark.parametrize(
    ("quantile", "untold"),
    [([5.0, 9.0], True), ([3.0, 3.1], False), ([20.0, 20.1], False)],
)
def test_seeds_that_cannot_order_two_maps_explain_a_wrong_order(
    quantile: list[float], untold: bool
) -> None:
    finding = table_6.find({"errors": errors(quantile, [4, 3, 2, 1])})
    of_quantile, of_absolute = finding.differences
    assert of_quantile.elsewhere is untold
    assert of_absolute.elsewhere is False
    assert f"by {quantile[0]:g} to {quantile[1]:g} % over our seeds" in of_quantile.why


@pytest.mark.parametrize(("absolute", "count"), [([1, 2, 3, 4], 2), ([4, 3, 2, 1], 0)])
def test_an_order_that_no_state_has_contradicts(absolute: list[float], count: int) -> None:
    finding = table_6.find({"errors": errors([5.0, 9.0], absolute)})
    difference = finding.differences[1]
    assert (
        f"over elements for {count} of 2 states ({count} without the linear map)" in difference.why
    )
    assert difference.elsewhere is (count > 0)


def test_errors_over_codes_and_over_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two codes in use: 1, hit exactly by one element, and 1/127, by three of 1.5 times that.
    m = torch.tensor([1.0, *[1.4 / 127] * 3, 0.0])
    monkeypatch.setattr(table_6, "adam_pairs", lambda *_: [("w", m, torch.ones(5), 1)])
    row = table_6.read(CapturedStates.__new__(CapturedStates)).set_index("map").loc[WITH_ZERO]
    off = 0.4 / 127
    assert row[ELEMENTS] == pytest.approx(100 * 3 / 4 * 0.4 / 1.4, rel=1e-5)
    assert row[RELATIVE] == pytest.approx(100 / 2 * 0.4 / 1.4, rel=1e-5)
    assert row[ABSOLUTE] == pytest.approx(1e10 * 3 / 4 * off, rel=1e-4)
    assert row[CODES] == pytest.approx(1e10 / 2 * off, rel=1e-4)
    assert row[TYPICAL] == pytest.approx((1 + 3 * 1.4 / 127) / 4, rel=1e-5)


def test_only_a_map_without_zero_errs_by_more_than_all(monkeypatch: pytest.MonkeyPatch) -> None:
    m = torch.cat([torch.ones(1), torch.full((99,), 1e-4)])
    monkeypatch.setattr(table_6, "adam_pairs", lambda *_: [("w", m, torch.ones(100), 1)])
    errors_of_maps = table_6.read(CapturedStates.__new__(CapturedStates)).set_index("map")[ELEMENTS]
    assert errors_of_maps[WITH_ZERO] == pytest.approx(99.0)
    assert errors_of_maps["linear"] > 1000
