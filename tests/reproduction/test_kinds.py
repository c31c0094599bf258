"""What numbers are evidence of."""

from __future__ import annotations

import math
from collections import Counter

import pandas as pd
import pytest

from qmaps.lab.report.claim import Claim, Verdict
from reproduction import PAPERS
from reproduction.eight_bit import table_1
from reproduction.exhibit import Finding, Kind, Needs
from reproduction.parallelism_2015 import tables
from reproduction.results import Result
from reproduction.summary import numbers
from reproduction.verdict import beside


def test_what_needs_nothing_is_computed() -> None:
    for paper in PAPERS.values():
        for exhibit in paper.exhibits:
            measured = exhibit.kind_of("") is Kind.MEASURED
            assert measured is (exhibit.needs is not Needs.NOTHING)
    assert table_1.EXHIBIT.kind_of("memory saved") is Kind.COMPUTED
    assert tables.EXHIBIT.kind_of("total, ms") is Kind.GIVEN


def test_counts_by_kind() -> None:
    paper = pd.DataFrame(
        {"what": ["a", "b", "a"], "quantity": ["GLUE", "GLUE", "memory saved"], "unit": "",
         "paper": [1.0, 2.0, 3.0], "paper_spread": math.nan}
    )  # fmt: skip
    ours = {("a", "GLUE"): 5.0, ("a", "memory saved"): 3.0}
    finding = Finding(beside(paper, ours), [Claim("holds", True), Claim("nothing to compare")])
    assert finding.counts(table_1.EXHIBIT.kind_of) == Counter(
        {
            (Kind.MEASURED, Verdict.REPRODUCED): 1,
            (Kind.MEASURED, Verdict.DIFFERS): 1,
            (Kind.COMPUTED, Verdict.REPRODUCED): 1,
        }
    )
    found = numbers([(PAPERS["8-bit-optimizers"], [Result(table_1.EXHIBIT, finding)])])
    assert found[0] == {"ours": "measured", "reproduced": 1, "differs": 1}
    assert found[1] == {"ours": "computed", "reproduced": 1, "differs": 0}


def test_a_speed_up_counts_once() -> None:
    found = tables.find(tables.build(None)).numbers  # type: ignore[arg-type]
    assert found is not None
    rows = found["what"].str.removeprefix("table 1: ").str.removeprefix("table 7: ")
    speedups = found["quantity"].str.startswith("speed-up") & (
        found["quantity"] != "speed-up, convnet2"
    )
    assert not rows[speedups].duplicated().any()
    assert speedups.sum() == pytest.approx(14)
