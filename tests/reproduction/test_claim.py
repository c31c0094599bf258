"""One type of claim, one set of verdicts."""

from __future__ import annotations

import math

import pytest

from reproduction.claim import Claim, Verdict
from reproduction.numbers import number, percent

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("holds", "verdict"),
    [
        (True, Verdict.REPRODUCED),
        (False, Verdict.DIFFERS),
        ((True, True), Verdict.REPRODUCED),
        ((True, False), Verdict.PARTLY),
        ([False, False], Verdict.DIFFERS),
        ((), Verdict.UNDECIDED),
    ],
)
def test_a_statement(holds: bool | tuple[bool, ...], verdict: Verdict) -> None:
    assert Claim("so it is", holds).verdict is verdict


@pytest.mark.parametrize(
    ("ours", "holds", "tolerance", "verdict"),
    [
        (11.5, (), 0.1, Verdict.REPRODUCED),  # a tenth of 10, and the spread of 0.5
        (11.6, (), 0.1, Verdict.DIFFERS),
        (11.6, (True, True), 0.1, Verdict.ORDERING),
        (11.6, (True, False), 0.1, Verdict.DIFFERS),
        (10.0, (True,), None, Verdict.ORDERING),  # no common scale: never reproduced
        (10.0, (), None, Verdict.DIFFERS),
        (math.nan, (True,), 0.1, Verdict.NOT_COMPARED),
    ],
)
def test_a_number(
    ours: float, holds: tuple[bool, ...], tolerance: float | None, verdict: Verdict
) -> None:
    claim = Claim("ten", holds, paper=10.0, spread=0.5, ours=ours, tolerance=tolerance)
    assert claim.verdict is verdict


def test_a_number_of_too_few_runs() -> None:
    for ours, verdict in ((10.5, Verdict.REPRODUCED), (20.0, Verdict.UNDECIDED)):
        assert Claim("ten", (True,), paper=10.0, ours=ours, undecided=True).verdict is verdict
    assert Claim("ten", paper=10.0, ours=20.0).verdict is Verdict.DIFFERS


def test_numbers_are_readable() -> None:
    assert [percent(v) for v in (0.0476, 2.01, 5083.9)] == ["4.76 %", "201 %", "508,390 %"]
    assert [number(v) for v in (0.0041, 1511.2, 0, 3.2e-7, 4.5e6)] == [
        "0.0041", "1,511", "0", "3.20e-07", "4,500,000",
    ]  # fmt: skip
