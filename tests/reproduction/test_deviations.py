"""Tables of inputs other than the papers'."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from reproduction import PAPERS, workloads
from reproduction.deviations import DEVIATIONS, deviations
from reproduction.page import write

pytestmark = pytest.mark.slow

ABOUT = {
    "command": "python -m reproduction", "workload": "w", "machine": "m", "quick": False,
    "own": False, "versions": {"qmaps": "1", "torch": "2", "python": "3"},
}  # fmt: skip


def labels(where: str) -> set[str]:
    """``Table 1``, ``Table 2`` and ``Table 3`` for ``Tables 1 to 3``."""
    names = set()
    for kind, numbers in re.findall(r"(Table|Figure)s? ([\d to,and]*\d)", where):
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", numbers):
            names |= {f"{kind} {number}" for number in range(int(first), int(last or first) + 1)}
    return names | set(re.findall(r"Section [\d.]+|Appendix [A-Z]", where))


def test_labels_of_ranges() -> None:
    assert labels("Tables 1 and 3, Figures 2 to 4, Appendix C") == {
        "Table 1", "Table 3", "Figure 2", "Figure 3", "Figure 4", "Appendix C",
    }  # fmt: skip


@pytest.mark.parametrize("name", PAPERS)
def test_they_are_of_exhibits_that_are_made(name: str) -> None:
    covered = {label for exhibit in PAPERS[name].exhibits for label in exhibit.covers}
    table = deviations(name)
    assert len(table)
    for where in table["where"]:
        assert labels(where) <= covered or where in covered, where
        assert labels(where) or where in covered, where
    assert set(pd.read_csv(DEVIATIONS)["name"]) == set(PAPERS)


def test_steps_and_rates_are_those_of_the_workloads(monkeypatch: pytest.MonkeyPatch) -> None:
    longer = workloads.get("stdlib-lm-tiny", steps=12345)
    get = workloads.get
    monkeypatch.setattr(
        workloads, "get", lambda name: longer if name == "stdlib-lm-tiny" else get(name)
    )
    rows = deviations("4-bit-optimizers").set_index(["where", "input"])
    assert "stdlib-lm-tiny (12345 steps)" in rows["ours"]["Table 2", "models and data"]


def test_pages_of_our_own_runs_show_them(tmp_path: Path) -> None:
    paper = PAPERS["8-bit-optimizers"]
    page = write(paper, [], ABOUT, tmp_path).read_text()
    text = (tmp_path / paper.name / "README.md").read_text()
    row = "| Figure 3 | base | β1=0.9, β2=0.995, ε=1e-7, lr=0.0163; two seeds | the same but for lr"
    assert row in text
    assert "<td>β1=0.9, β2=0.995, ε=1e-7, lr=0.0163; two seeds</td>" in page
    for name in ("quick", "own"):
        page = write(paper, [], ABOUT | {name: True}, tmp_path).read_text()
        assert "Inputs that are not the paper's" not in page
        text = (tmp_path / paper.name / "README.md").read_text()
        assert "Inputs that are not the paper's" not in text
