"""Numbers of the papers contradicted by the papers themselves."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pandas as pd
import pytest

from reproduction.catalogue import PAPERS
from reproduction.claim import Claim, Verdict, published
from reproduction.context import Context
from reproduction.exhibit import ERRORS, weakest
from reproduction.four_bit import table_4
from reproduction.parallelism_2015 import table_2, table_5, tables
from reproduction.verdict import beside

pytestmark = pytest.mark.slow

PARALLELISM = "8-bit-parallelism-2015"


def test_a_number_in_doubt_is_no_difference() -> None:
    def verdict(ours: float, doubt: str = "key") -> Verdict:
        return Claim("", paper=1.0, ours=ours, doubt=doubt).verdict

    assert verdict(2.0) is Verdict.DOUBT
    assert verdict(2.0, doubt="") is Verdict.DIFFERS
    assert verdict(1.01) is Verdict.DOUBT  # an impossible number is not reproduced
    assert verdict(float("nan")) is Verdict.NOT_COMPARED
    assert weakest([Verdict.DOUBT, Verdict.REPRODUCED]) is Verdict.DOUBT
    assert weakest([Verdict.DOUBT, Verdict.ORDERING]) is Verdict.ORDERING


def test_others_are_not_ordered_by_a_number_in_doubt() -> None:
    paper = pd.DataFrame(
        {"what": ["a", "b", "c"], "quantity": "x", "unit": "", "paper": [1.0, 2.0, 3.0],
         "paper_spread": float("nan"), "doubt": ["", "", "key"]}
    )  # fmt: skip
    ours = {("a", "x"): 10.0, ("b", "x"): 20.0, ("c", "x"): 0.1}
    assert list(beside(paper, ours)["verdict"]) == [Verdict.ORDERING] * 2 + [Verdict.DOUBT]


def test_every_doubt_has_its_reason() -> None:
    errors = pd.read_csv(ERRORS)
    assert set(errors["paper"]) <= set(PAPERS)
    assert errors["key"].is_unique
    assert not errors.isna().any(axis=None)
    folder = Path(str(resources.files("qmaps.lab.report").joinpath("papers")))
    for file in folder.glob("*/*.csv"):
        rows = pd.read_csv(file, comment="#", skipinitialspace=True)
        doubts = set(rows["doubt"].dropna()) if "doubt" in rows else set()
        assert doubts <= set(errors.loc[errors["paper"] == file.parent.name, "key"])
    assert set(table_5.printed()["doubt"].dropna()) - {""} <= set(errors["key"])


def test_a_number_listed_as_an_error_is_not_reproduced() -> None:
    numbers = table_4.find(table_4.build(Context(Path()))).numbers
    assert numbers is not None
    saved = numbers[numbers["paper"] == 2.37]
    assert saved["verdict"].tolist() == [Verdict.DOUBT.value] * 2


def test_inputs_that_speak_against_a_printed_time() -> None:
    numbers = tables.find(tables.build(None)).numbers  # type: ignore[arg-type]
    assert numbers is not None
    doubted = numbers[numbers["verdict"] == Verdict.DOUBT].set_index("what")
    assert list(doubted.index) == ["table 3: conv 11x11, stride 4, 3-64, 32-bit"]
    assert not numbers["what"].str.contains("all layers").any()  # an estimate of NervanaGPU
    row = {"table": "3", "row": "conv 11x11, stride 4, 3-64", "messages": "32-bit",
           "agrees": False, "printed": "0.05"}  # fmt: skip
    assert tables._bandwidth(row) == pytest.approx(6.55, abs=0.01)
    assert tables._doubt(row) == "size-of-11x11"
    assert tables._doubt({**row, "printed": "0.08"}) == ""
    assert tables._doubt({**row, "messages": "8-bit"}) == ""
    assert tables._doubt({**row, "agrees": True}) == ""
    keys = set(pd.read_csv(ERRORS)["key"])
    assert "size-of-11x11" in keys
    weights = 11 * 11 * 3 * 64
    assert weights / 4 * 4 / 2**20 == pytest.approx(0.022, abs=5e-4)  # a quarter, 4 bytes each


def test_absolute_errors_in_doubt_contradict_the_relative_ones_beside_them() -> None:
    """The ratio of absolute and relative error gives the magnitude of numbers, for each type."""
    ours = pd.read_csv(Path(__file__).parents[2] / "reports" / "approximation.csv")
    ours = ours[ours["type"] != "static tree"].copy()
    ours["type"] = ours["type"].str.removesuffix(", 4 levels")
    magnitude = (ours["paper_abs"] / ours["paper_rel"]) / (
        ours["search_abs_error"] / ours["search_rel_error"]
    )
    ours["magnitude"] = magnitude
    magnitudes = ours.set_index(["data", "type"])["magnitude"]
    theirs = published(PARALLELISM, table_2.EXHIBIT.name)
    doubted = theirs[theirs["doubt"] != ""]
    assert len(doubted)
    for row in doubted.itertuples():
        data = str(row.quantity).removeprefix("mean absolute error, ")
        # The magnitude of uniform numbers is known; elsewhere the tree's is taken.
        due = 1.0 if data.startswith("uniform") else magnitudes[data, "dynamic tree"]
        assert not 1 / 3 < magnitudes[data, row.what] / due < 3
    samples = [data for data in ours["data"].unique() if data.startswith("normal")]
    for data in samples:
        ratio = magnitudes[data, "linear"] / magnitudes[data, "dynamic tree"]
        assert ratio == pytest.approx(1, abs=0.3)
