"""Verdicts follow the numbers."""

from __future__ import annotations

import pandas as pd
import pytest

from qmaps.lab.frames import COMPARED
from qmaps.lab.report.claim import Verdict
from qmaps.lab.report.claims import claims, number, percent

PARTLY, DIFFERS = Verdict.PARTLY, Verdict.DIFFERS
ORDER = ("DE", "inverse", "quantile", "linear0")


def frame(**changes: dict[str, float]) -> pd.DataFrame:
    """Errors under which every claim holds, with changes by part of a pair's name."""
    rows = []
    for pair in COMPARED:
        rank = next((i for i, name in enumerate(ORDER) if f"tensor/{name}@" in pair), 0)
        row = {
            f"{statistic}_{kind}_error": 0.005 * (1 + rank)
            for kind in ("abs", "rel")
            for statistic in ("mean", "median", "p99", "p999", "max")
        }
        row |= {"quantizer": pair, "zeroed_share": 0.0}
        if pair.startswith("B2048"):
            row |= {"mean_abs_error": 0.004, "median_abs_error": 0.004}
            row |= {"mean_rel_error": 0.004, "median_rel_error": 0.004}
        if pair.endswith("B128/DE@4u"):
            row |= {"zeroed_share": 0.01, "mean_abs_error": 1.0}
        for part, values in changes.items():
            if pair == part:
                row |= values
        rows.append(row)
    return pd.DataFrame(rows)


def sweep(order: tuple[str, ...] = ORDER) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "quantizer": [f"tensor/{name}@8s" for name in order],
            "state": "exp_avg",
            "first": None,
            "second": None,
            "numel": 10,
            "mean_abs_error": [1.0 + i for i in range(4)],
        }
    )


def test_every_claim_can_hold() -> None:
    found = claims(frame(), sweep())
    assert [claim.verdict for claim in found] == [Verdict.REPRODUCED] * 7
    assert "The whole order holds" in found[0].detail
    for claim in found:
        lengths = {len(cells) for cells in claim.table.values()}
        assert len(lengths) <= 1


@pytest.mark.parametrize(
    ("index", "changes", "verdict", "words"),
    [
        (0, {"tensor/DE@8s + tensor/DE@8u": {"mean_rel_error": 0.011}}, PARTLY,
         "dynamic < inverse dynamic (mean: 1.1 % against 1 %)"),
        (1, {"tensor/quantile@8s + 32-bit": {"median_rel_error": 0.9}}, PARTLY,
         "quantile < linear (median: 90 % against 2 %)"),
        (3, {"B2048/DE@8s + B2048/DE@8u": {"mean_abs_error": 0.006}}, PARTLY, "0.006"),
        (4, {"B2048/DE@8s + B2048/DE@8u": {"mean_abs_error": 0.013}}, PARTLY, "factor of two"),
        (5, {"B128/DE@4s + B128/DE-0@4u": {"zeroed_share": 0.1}}, PARTLY, "1 %"),
        (5, {"B128/DE@4s + B128/DE@4u": {"zeroed_share": 0.0, "mean_abs_error": 0.005},
             "B128/DE@4s + B128/DE-0@4u": {"zeroed_share": 0.1}}, DIFFERS, "0 %"),
        (6, {"B128/DE@4s + 32-bit": {"mean_abs_error": 0.003}}, DIFFERS, "0.003"),
    ],
)  # fmt: skip
def test_a_claim_that_does_not_hold(
    index: int, changes: dict[str, dict[str, float]], verdict: str, words: str
) -> None:
    claim = claims(frame(**changes), sweep())[index]
    assert claim.verdict == verdict
    assert words in claim.detail


def test_the_order_of_absolute_errors() -> None:
    turned = claims(frame(), sweep(tuple(reversed(ORDER))))[2]
    assert turned.verdict == DIFFERS
    assert turned.detail.startswith(
        "Here the order is linear < quantile < inverse dynamic < dynamic"
    )
    assert turned.table["here, over that of dynamic"] == ["1.00", "0.75", "0.50", "0.25"]


def test_claims_without_their_quantizers_are_left_out() -> None:
    few = frame().query(
        "quantizer.str.startswith('B2048') or quantizer.str.startswith('tensor/DE')"
    )
    titles = [claim.text for claim in claims(few)]
    assert titles == [
        "Block-wise dynamic quantization errs less than per tensor",
        "Mean absolute Adam error: 0.0067 dynamic, 0.0061 block-wise dynamic",
    ]


def test_the_papers_numbers() -> None:
    found = claims(frame(), sweep())
    assert found[0].table["paper, mean relative"] == [
        "4.8 ± 0.4 %", "6.5 ± 0.1 %", "11.9 ± 0.3 %", "201.0 ± 17.0 %",
    ]  # fmt: skip
    assert found[2].table["paper, mean absolute"][3] == "41.2 ± 3.1 e-10"
    assert found[4].table["paper, mean absolute"] == ["0.0067", "0.0061"]


def test_numbers_are_readable() -> None:
    assert [percent(v) for v in (0.0476, 2.01, 5083.9)] == ["4.76 %", "201 %", "508,390 %"]
    assert [number(v) for v in (0.0041, 1511.2, 0, 3.2e-7, 4.5e6)] == [
        "0.0041", "1,511", "0", "3.20e-07", "4,500,000",
    ]  # fmt: skip
