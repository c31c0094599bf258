"""Explanations of differences; our own pages leave none without a reason."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from reproduction.claim import Claim, Verdict
from reproduction.differences import Difference, lines
from reproduction.exhibit import Finding, explain, weakest
from reproduction.verdict import beside

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CONTROL, NONE = Difference("A control.", True, "^size: a|^So"), Difference("None.", False)


def finding(*differences: Difference) -> Finding:
    paper = pd.DataFrame(
        {"what": ["a", "b", "c"], "quantity": "size", "unit": "", "paper": [1.0, 2.0, 3.0],
         "paper_spread": math.nan}
    )  # fmt: skip
    ours = {("a", "size"): 9.0, ("b", "size"): 8.0, ("c", "size"): 3.0}
    statements = [
        Claim("So it is.", False),
        Claim("And so.", True),
        Claim("Partly.", [True, False]),
    ]
    return Finding(beside(paper, ours), statements, differences=differences)


def verdicts(finding: Finding) -> list[str]:
    return [verdict.value for verdict in finding.verdicts]


def test_a_control_explains_a_difference_and_without_one_it_contradicts() -> None:
    assert verdicts(finding()) == [
        "differs", "differs", "reproduced", "differs", "reproduced", "reproduced in part",
    ]  # fmt: skip
    explained = explain(finding(CONTROL, NONE))
    assert verdicts(explained) == [
        "another model, data or machine", "contradicts", "reproduced",
        "another model, data or machine", "reproduced", "reproduced in part",
    ]  # fmt: skip
    assert lines(explained.differences) == [
        "- *another model, data or machine*: A control.",
        "- *contradicts*: None.",
    ]
    assert explained.verdict is Verdict.CONTRADICTS


def test_the_first_fitting_explanation_decides_and_others_are_not_shown() -> None:
    explained = explain(finding(NONE, CONTROL))
    assert explained.differences == [NONE]
    assert "another model, data or machine" not in verdicts(explained)
    by_control = explain(finding(CONTROL))
    assert verdicts(by_control)[:2] == ["another model, data or machine", "differs"]


def test_the_weakest_is_a_contradiction() -> None:
    order = [Verdict.ELSEWHERE, Verdict.DIFFERS, Verdict.CONTRADICTS]
    for place, verdict in enumerate(order):
        assert weakest([Verdict.REPRODUCED, *order[: place + 1]]) is verdict


def test_a_statement_that_the_paper_speaks_against_puts_it_in_doubt() -> None:
    assert Claim("so", False, doubt="key").verdict is Verdict.DOUBT
    assert Claim("so", True, doubt="key").verdict is Verdict.REPRODUCED


def test_a_number_that_is_printed_the_same_is_reproduced() -> None:
    def verdict(ours: float) -> Verdict:
        return Claim("", paper=0.1, rounding=0.05, ours=ours).verdict

    assert verdict(0.0712) is verdict(0.15) is Verdict.REPRODUCED
    assert verdict(0.16) is Verdict.DIFFERS


@pytest.mark.parametrize("table", ["measured", "computed", "from the paper's own inputs"])
def test_our_pages_leave_no_difference_without_a_reason(table: str) -> None:
    text = (ROOT / "reports" / "papers.md").read_text(encoding="utf-8")
    head = next(line for line in text.splitlines() if line.startswith("| ours |"))
    if "differs" not in head:  # a column is there where any row has such a verdict
        return
    place = [cell.strip() for cell in head.split("|")].index("differs")
    row = next(line for line in text.splitlines() if line.startswith(f"| {table} |"))
    assert row.split("|")[place].strip() == "0"
