"""Proxies for metrics out of reach here: they give orders, never numbers."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from qmaps.errors import BadValueError
from reproduction import PAPERS, cell_text
from reproduction.claim import Claim, Verdict, published
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Needs
from reproduction.proxy_metrics import Better, ProxyMetric, in_place
from reproduction.results import Result
from reproduction.verdict import beside

pytestmark = pytest.mark.slow

REPORTS = Path(__file__).parents[2] / "reports"
NOT, ORDER, DIFFERS = "not compared", "same ordering", "differs"
UNDECIDED = "cannot tell"


def paper(*values: float, better: str = "more", spread: float = math.nan) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "what": [f"row {n}" for n in range(len(values))],
            "quantity": "accuracy",
            "unit": "%",
            "paper": values,
            "paper_spread": spread,
            "better": better,
            "rounding": 0.05,
        }
    )


def losses(
    *values: float | tuple[float, float] | None, better: Better = Better.LESS, name: str = "loss"
) -> ProxyMetric:
    rows = {f"row {n}": value for n, value in enumerate(values) if value is not None}
    return ProxyMetric("accuracy", name, rows, better)


@pytest.mark.parametrize(
    ("theirs", "ours", "expected"),
    [
        (paper(80, 70, 60), losses(0.1, 0.2, 0.3), [ORDER] * 3),
        (paper(80, 70, 60), losses(0.3, 0.2, 0.1), [DIFFERS] * 3),
        (paper(80, 70, 60), losses(3, 2, 1, better=Better.MORE), [ORDER] * 3),
        (paper(80, 70, better="less"), losses(3, 2), [ORDER] * 2),
        # The very number, which would be called reproduced were it one of the paper's kind.
        (paper(80, 70), losses(80.0, 70.0), [DIFFERS] * 2),
        (paper(70, 80), losses(80.0, 70.0), [ORDER] * 2),
        # One out of place makes all differ that it lies to in the other way.
        (paper(80, 70, 60), losses(0.2, 0.1, 0.3), [DIFFERS, DIFFERS, ORDER]),
        # Ties: equal in both is alike; apart in one only says nothing.
        (paper(80, 80), losses(0.2, 0.2), [ORDER] * 2),
        (paper(80, 80), losses(0.1, 0.2), [DIFFERS] * 2),
        (paper(80, 70), losses(0.2, 0.2), [DIFFERS] * 2),
        (paper(80, 80, 70), losses(0.1, 0.2, 0.3), [ORDER] * 3),
        # Spreads that touch, the paper's and ours.
        (paper(80, 79, spread=0.5), losses(0.2, 0.2), [ORDER] * 2),
        (paper(80, 79, spread=0.4), losses(0.2, 0.2), [DIFFERS] * 2),
        (paper(80, 79, spread=0.4), losses((0.1, 0.06), (0.2, 0.05)), [UNDECIDED] * 2),
        # Equal within the margin of losses is equal; chance that hides a difference is not.
        (paper(80, 80), losses((0.1, 0.04), (0.2, 0.07)), [UNDECIDED] * 2),
        (paper(80, 80), losses((0.1, 0.001), (0.103, 0.001)), [ORDER] * 2),
        (paper(80, 70), losses((0.1, 0.001), (0.103, 0.001)), [ORDER] * 2),
        (paper(70, 80), losses((0.1, 0.001), (0.103, 0.001)), [DIFFERS] * 2),
        (paper(80, 80), losses((0.1, 0.04), (0.2, 0.05)), [DIFFERS] * 2),
        # An order of the paper's that spreads hide is not shown by other rows.
        (paper(80, 70, 60), losses((0.2, 0.06), (0.1, 0.06), 0.3), [UNDECIDED] * 2 + [ORDER]),
        (paper(80, 80, 60), losses((0.2, 0.06), (0.1, 0.06), 0.3), [ORDER] * 3),
        # What may be the same number before it was rounded.
        (paper(88.6, 88.7), losses(0.2, 0.2), [ORDER] * 2),
        (paper(88.6, 88.8), losses(0.2, 0.2), [DIFFERS] * 2),
        # Nothing to be compared with; nothing of ours; a run that diverged.
        (paper(80), losses(0.1), [NOT]),
        (paper(80, 70, 60), losses(0.1, None, 0.3), [ORDER, NOT, ORDER]),
        (paper(80, 70), losses(0.1, math.nan), [NOT, NOT]),
        (paper(80, 70), losses(0.1, math.inf), [ORDER] * 2),
        (paper(80, 70), losses(math.inf, math.inf), [DIFFERS] * 2),
    ],
)
def test_orders_of_proxies(theirs: pd.DataFrame, ours: ProxyMetric, expected: list[str]) -> None:
    assert in_place(theirs, [ours])["verdict"].tolist() == expected


def test_rows_hold_both_numbers_in_the_papers_order() -> None:
    theirs = pd.concat(
        [paper(80, 70), paper(5.0).assign(what="net", quantity="size", unit="MB", better="")]
    )
    metrics = [losses(0.1, 0.2, 0.3, name="loss a"), losses((1, 0.5), 2, name="loss b")]
    frame = in_place(theirs, metrics, {("net", "size"): 5.1, ("mine", "size"): 4.0})
    assert frame[["what", "proxy", "verdict"]].to_numpy().tolist() == [
        ["row 0", "loss a", ORDER],
        ["row 0", "loss b", ORDER],
        ["row 1", "loss a", ORDER],
        ["row 1", "loss b", ORDER],
        ["row 2", "loss a", NOT],
        ["net", "", "reproduced"],
        ["mine", "", NOT],
    ]
    shown = cell_text.numbers(frame)
    assert list(shown) == ["", "quantity", "paper", "in its place", "ours", "verdict"]
    assert shown.iloc[1].tolist() == ["row 0", "accuracy (%)", "80", "loss b", "1.00 ± 0.50", ORDER]
    assert shown.iloc[5].tolist() == ["net", "size (MB)", "5", "-", "5.1", "reproduced"]
    assert "in its place" not in cell_text.numbers(frame.iloc[5:])


@pytest.mark.parametrize(
    ("printed", "value", "shown"),
    [
        ("0.236719", 0.23671875, "0.236719"),
        ("0.000015", 0.0000149, "0.0000149"),
        ("0.2", 0.2, "0.2"),
        ("104.1", 94.5, "94.5"),
        ("1.5", 1234.56, "1,234.6"),
        ("650", 649.0, "649"),
        ("5 (?)", 4.62, "4.62"),
        ("0.004", 1.04e-9, "1.04e-09"),
        ("0.4", 0.0, "0"),
        ("0.4", math.nan, "-"),
    ],
)
def test_numbers_of_ours_have_the_decimals_that_the_paper_prints(
    printed: str, value: float, shown: str
) -> None:
    row = {"what": "x", "quantity": "q", "unit": "", "paper": 1.0, "paper_spread": math.nan,
           "printed": printed, "proxy": "", "ours": value, "ours_spread": math.nan,
           "verdict": "reproduced"}  # fmt: skip
    assert cell_text.numbers(pd.DataFrame([row]))["ours"].tolist() == [shown]


@pytest.mark.parametrize(
    ("value", "spread", "expected"),
    [
        (2.88649, 0.01781, "2.886 ± 0.018"),
        (0.0462, 0.00698, "0.0462 ± 0.0070"),
        (201.4, 17.2, "201 ± 17"),
        (8.94, 1.5, "8.9 ± 1.5"),
        (2.0, 0.0, "2 ± 0"),
        (2.5, math.nan, "2.5"),
        (math.nan, math.nan, "-"),
        (math.inf, 0.1, "inf ± 0.1"),
        (3.24567e-5, 1.2e-7, "3.25e-05 ± 1.20e-07"),
        (1.5e6, 2.0, "1,500,000 ± 2"),
    ],
)
def test_numbers_of_ours_are_as_long_as_their_spreads(
    value: float, spread: float, expected: str
) -> None:
    assert cell_text.measured(value, spread) == expected


@pytest.mark.parametrize(("better", "shown"), [("", "['']"), ("most", "['most']")])
def test_a_metric_without_a_direction_is_refused(better: str, shown: str) -> None:
    with pytest.raises(BadValueError) as caught:
        in_place(paper(80, 70, better=better), [losses(0.1, 0.2)])
    assert str(caught.value) == (
        f"better={shown} of 'accuracy' must be one of more, less in all its rows"
    )


def test_published_numbers_have_the_uncertainty_of_their_rounding() -> None:
    rows = published("8-bit-optimizers", "table-1").set_index(["what", "quantity"])
    assert rows.loc[("32-bit Adam", "MT"), "rounding"] == pytest.approx(0.05)  # printed as 29.0
    assert rows.loc[("32-bit Adam", "MT, time"), "rounding"] == pytest.approx(0.5)
    assert rows.loc[("32-bit Adam", "LM, GPT3-Medium"), ["paper", "better"]].tolist() == [
        10.62, "less",
    ]  # fmt: skip


def test_a_table_of_which_no_number_is_compared_is_not_headed_by_a_statement() -> None:
    numbers = beside(paper(80, 70), {("mine", "loss"): 0.1})
    assert Finding(numbers).missing == 2
    assert Finding(numbers, [Claim("so", True)]).verdict is Verdict.NOT_COMPARED
    assert Finding(numbers, [Claim("so", False)]).verdict is Verdict.DIFFERS
    assert Finding(numbers, [Claim("all", True, covers=True)]).verdict is Verdict.REPRODUCED
    assert Finding(None, [Claim("so", True)]).verdict is Verdict.REPRODUCED
    compared = in_place(paper(80, 70, 60), [losses(0.1, 0.2)])
    finding = Finding(compared, [Claim("so", True)])
    assert finding.verdict is Verdict.ORDERING
    exhibit = Exhibit("x", ("Table 9",), "", Needs.NOTHING, lambda _: {}, lambda _: finding)
    assert Result(exhibit, finding).tally == "1 reproduced, 2 same ordering, 1 not compared"


def finding_of(name: str, exhibit: str, runs: Path) -> Finding:
    (chosen,) = [candidate for candidate in PAPERS[name].exhibits if candidate.name == exhibit]
    return chosen.find(chosen.build(Context(runs, reports=REPORTS)))


STANDING = {
    ("8-bit-optimizers", "table-1"): {
        "GLUE", "ImageNet", "MT", "MoCo v2", "LM, Transformer-1.5B", "LM, GPT3-Medium",
        "Masked LM, RoBERTa-base",
    },
    ("8-bit-optimizers", "table-3"): {"perplexity"},
    ("4-bit-optimizers", "table-1"): {"BLEU"},
    ("4-bit-optimizers", "table-2"): {"NLU", "CLS", "NLG", "QA", "MT"},
    ("4-bit-optimizers", "table-4"): set(),
    ("4-bit-optimizers", "table-6"): {"accuracy"},
    ("low-precision-model-memory", "table-2"): {"top-1 accuracy"},
    ("low-precision-model-memory", "table-3"): {"top-1 accuracy"},
}  # fmt: skip
"""Metrics of each table replaced by a loss or a perplexity; times aside."""


@pytest.mark.parametrize(("name", "exhibit"), STANDING)
def test_every_metric_of_the_tables_is_compared(name: str, exhibit: str, tmp_path: Path) -> None:
    finding = finding_of(name, exhibit, tmp_path)
    assert finding.numbers is not None
    printed = finding.numbers[finding.numbers["paper"].notna()]
    stood = printed[printed["proxy"] != ""]
    metrics = {q for q in stood["quantity"].unique() if "time" not in q}
    assert metrics == STANDING[name, exhibit]
    compared = stood[stood["verdict"] != NOT]
    assert set(compared["quantity"]) == set(stood["quantity"])
    assert set(compared["verdict"]) <= {ORDER, DIFFERS, UNDECIDED}
    assert finding.missing == len(
        set(zip(printed["what"], printed["quantity"], strict=True))
        - set(
            printed[printed["verdict"] != NOT][["what", "quantity"]].itertuples(
                index=False, name=None
            )
        )
    )
