"""Verdicts: reproduced, same ordering, or different."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from reproduction.claim import Claim, Verdict
from reproduction.exhibit import Finding, _ranges, weakest
from reproduction.verdict import beside

pytestmark = pytest.mark.slow


def paper(*values: float, spread: float = math.nan) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "what": [f"row {number}" for number in range(len(values))],
            "quantity": "size",
            "unit": "cm",
            "paper": values,
            "paper_spread": spread,
        }
    )


def verdicts(theirs: pd.DataFrame, *ours: float | tuple[float, float] | None) -> list[str]:
    by_row = {(f"row {n}", "size"): value for n, value in enumerate(ours) if value is not None}
    return list(beside(theirs, by_row)["verdict"])


@pytest.mark.parametrize(
    ("theirs", "ours", "expected"),
    [
        (paper(1, 2, 3), (1.05, 1.9, 3.2), ["reproduced"] * 3),
        (paper(1, 2, 3), (10, 20, 30), ["same ordering"] * 3),
        # The two that changed places differ; the third lies to both as it should.
        (paper(1, 2, 3), (20, 10, 30), ["differs", "differs", "same ordering"]),
        (paper(1, 1, 3), (20, 10, 30), ["same ordering"] * 3),  # equal ones may lie either way
        (paper(1, 2), (2, 2), ["differs", "reproduced"]),  # a tie where the paper has none
        (paper(1), (5,), ["differs"]),  # nothing to be ordered by
        (paper(1), (1.6,), ["differs"]),
        (paper(1, spread=0.5), (1.55,), ["reproduced"]),
        (paper(1), ((1.55, 0.5),), ["differs"]),  # a wide spread of ours proves nothing
        (paper(1), ((1.05, 0.02),), ["reproduced"]),
        (paper(1), ((1.05, 0.2),), ["cannot tell"]),  # its mean alone is within a tenth
        (paper(0, 1), (0.0, 1.0), ["reproduced", "reproduced"]),
        (paper(1, 2), (1.0, None), ["reproduced", "not compared"]),
        (paper(math.nan, 2), (1.0, 2.0), ["not compared", "reproduced"]),
    ],
)
def test_verdict_of_each_number(theirs, ours, expected) -> None:
    assert verdicts(theirs, *ours) == expected


def test_ties_of_ours_where_the_paper_has_an_order_differ() -> None:
    assert verdicts(paper(1, 2), 5, 5) == ["differs", "differs"]


def test_an_order_that_follows_from_counting_is_no_evidence() -> None:
    theirs = paper(1, 2, 3)
    ours = {(f"row {n}", "size"): value for n, value in enumerate((10.0, 20.0, 30.0))}
    assert list(beside(theirs, ours)["verdict"]) == ["same ordering"] * 3
    assert list(beside(theirs, ours, unordered={"size"})["verdict"]) == ["differs"] * 3


def test_numbers_that_the_paper_lacks_come_after_its_own() -> None:
    frame = beside(paper(1.0), {("row 0", "size"): 1.0, ("mine", "size"): (2.0, 0.1)})
    assert frame["what"].tolist() == ["row 0", "mine"]
    assert frame.loc[1, ["unit", "ours", "ours_spread", "verdict"]].tolist() == [
        "cm", 2.0, 0.1, "not compared",
    ]  # fmt: skip


def test_a_finding_is_as_good_as_its_weakest_part() -> None:
    numbers = beside(paper(1, 2), {("row 0", "size"): 1.0, ("row 1", "size"): 20.0})
    finding = Finding(numbers, [Claim("so it is", True)])
    assert finding.verdict is Verdict.ORDERING
    assert Finding(numbers, [Claim("so it is", False)]).verdict is Verdict.DIFFERS
    assert Finding().verdict is Verdict.NOT_COMPARED
    assert weakest([Verdict.NOT_COMPARED, Verdict.REPRODUCED]) is Verdict.REPRODUCED


def test_the_weakest_verdict_decides() -> None:
    ascending = [Verdict.DIFFERS, Verdict.PARTLY, Verdict.ORDERING, Verdict.UNDECIDED,
                 Verdict.REPRODUCED]  # fmt: skip
    for place, verdict in enumerate(ascending):
        assert weakest([*reversed(ascending[place:]), Verdict.NOT_COMPARED]) is verdict
    assert weakest([Verdict.NOT_COMPARED]) is Verdict.NOT_COMPARED


def test_labels_of_neighbours_are_a_range() -> None:
    assert _ranges(["Figure 1", "Figure 5", "Figure 6", "Figure 7"]) == [
        "Figure 1", "Figures 5 to 7",
    ]  # fmt: skip
    assert _ranges(["Figure 1", "Figure 2"]) == ["Figures 1 and 2"]
    assert _ranges(["Table 2", "Appendix C"]) == ["Table 2", "Appendix C"]
