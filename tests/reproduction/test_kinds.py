"""Kinds of evidence behind numbers, and the first lines of a page."""

from __future__ import annotations

import math
from collections import Counter
from itertools import chain
from pathlib import Path

import pandas as pd
import pytest
from markupsafe import escape

from qmaps.lab import pipeline
from reproduction import PAPERS, page, summary
from reproduction.claim import Claim, Verdict
from reproduction.eight_bit import table_1
from reproduction.exhibit import Finding, Kind, Needs
from reproduction.parallelism_2015 import tables
from reproduction.results import Result
from reproduction.summary import numbers
from reproduction.verdict import beside

pytestmark = pytest.mark.slow


def test_exhibits_without_inputs_are_computed() -> None:
    for paper in PAPERS.values():
        for exhibit in paper.exhibits:
            measured = exhibit.kind_of("") is Kind.MEASURED
            if exhibit.kind is None:
                assert measured is (exhibit.needs is not Needs.NOTHING)
    assert table_1.EXHIBIT.kind_of("memory saved") is Kind.COMPUTED
    assert tables.EXHIBIT.kind_of("total, ms") is Kind.GIVEN


def test_counts_by_kind() -> None:
    paper = pd.DataFrame(
        {"what": ["a", "b", "a"], "quantity": ["GLUE", "GLUE", "memory saved"], "unit": "",
         "paper": [1.0, 2.0, 3.0], "paper_spread": math.nan}
    )  # fmt: skip
    ours = {("a", "GLUE"): 5.0, ("a", "memory saved"): 3.0}
    finding = Finding(beside(paper, ours), [Claim("holds", True), Claim("seeds are few")])
    assert finding.counts(table_1.EXHIBIT.kind_of) == Counter(
        {
            (Kind.MEASURED, Verdict.REPRODUCED): 1,
            (Kind.MEASURED, Verdict.DIFFERS): 1,
            (Kind.MEASURED, Verdict.UNDECIDED): 1,
            (Kind.COMPUTED, Verdict.REPRODUCED): 1,
        }
    )
    counts = numbers([(PAPERS["8-bit-optimizers"], [Result(table_1.EXHIBIT, finding)])])
    assert counts[0] == {"ours": "measured", "reproduced": 1, "differs": 1, "cannot tell": 1}
    assert counts[1] == {"ours": "computed", "reproduced": 1, "differs": 0, "cannot tell": 0}


def test_a_speed_up_counts_once() -> None:
    numbers_of_table = tables.find(tables.build(None)).numbers  # type: ignore[arg-type]
    assert numbers_of_table is not None
    rows = numbers_of_table["what"].str.removeprefix("table 1: ").str.removeprefix("table 7: ")
    speedups = numbers_of_table["quantity"].str.startswith("speed-up") & (
        numbers_of_table["quantity"] != "speed-up, convnet2"
    )
    assert not rows[speedups].duplicated().any()
    assert speedups.sum() == pytest.approx(15)  # with that of A.1.3


def test_pages_of_our_own_runs_open_with_the_statements_that_hold(tmp_path: Path) -> None:
    record = {"command": "", "workload": "", "versions": pipeline.versions(), "machine": ""}
    for name, paper in PAPERS.items():
        assert list(paper.in_short) == ["holds", "does not hold here", "open"]
        for quick, of_user in ((False, False), (True, False), (False, True)):
            page.write(paper, (), {**record, "quick": quick, "own": of_user}, tmp_path)
            for file in ("README.md", "index.html"):
                text = (tmp_path / name / file).read_text()
                for sentence in chain.from_iterable(paper.in_short.values()):
                    said = sentence if file == "README.md" else str(escape(sentence))
                    assert (said in text) is not (quick or of_user)


def test_a_page_opens_with_ten_plain_lines_and_a_link_to_the_rules(tmp_path: Path) -> None:
    record = {"command": "c", "workload": "", "versions": pipeline.versions(), "machine": "",
             "quick": False, "own": False}  # fmt: skip
    for name, paper in PAPERS.items():
        lines = list(chain.from_iterable(paper.in_short.values()))
        assert len(lines) <= 10
        assert max(len(line.split()) for line in lines) <= 30
        page.write(paper, (), record, tmp_path)
        head, _, tail = (tmp_path / name / "README.md").read_text().partition("\n\n- **Holds:**")
        assert "[What the verdicts mean](../papers.md#verdicts)" in head
        assert len(head.splitlines()) == 3
        assert tail.split("\n\n")[0].count("\n") == len(lines) - 1
        assert 'href="../papers.html#verdicts"' in (tmp_path / name / "index.html").read_text()


def test_every_verdict_is_explained_once_in_one_place(tmp_path: Path) -> None:
    record = {"command": "c", "workload": "", "versions": pipeline.versions(), "machine": "",
             "quick": False, "own": False}  # fmt: skip
    summary.write([(paper, ()) for paper in PAPERS.values()], record, tmp_path)
    text, html = ((tmp_path / f"papers.{suffix}").read_text() for suffix in ("md", "html"))
    for verdict in Verdict:
        assert text.count(f"\n- **{verdict}**: ") == 1
        assert html.count(f">{verdict}</span></dt>") == 1
    assert "\n## Verdicts\n" in text
    assert '<h2 id="verdicts">' in html


def test_a_row_of_figures_counts_once() -> None:
    four = PAPERS["4-bit-optimizers"]
    measured = Finding(statements=[Claim("holds", True)])
    timed = Finding(statements=[Claim("fast", True, comparable=False)])
    results = [Result(exhibit, timed if exhibit.timed else measured) for exhibit in four.exhibits]
    assert summary.covered([(four, results)]) == [
        {"paper": four.title, "made": 12, "compared": 11, "waiting": 0, "left": 7}
    ]
