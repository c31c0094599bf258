"""Rules for numbers of few runs and models near a limit: each can fail."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from reproduction import committed, max_model_size, memory, shares
from reproduction.claim import Verdict
from reproduction.context import Context
from reproduction.differences import Difference
from reproduction.eight_bit import appendix_c, table_2, table_3
from reproduction.eight_bit import table_1 as table_1_of_8
from reproduction.eight_bit import table_5 as table_5_of_8
from reproduction.exhibit import explain
from reproduction.four_bit import figure_3, figure_4, table_6
from reproduction.four_bit import table_2 as table_2_of_4
from reproduction.four_bit import table_4 as table_4_of_4
from reproduction.memory import quantizers
from reproduction.numbers import interval, ratio_interval, smaller
from reproduction.parallelism_2015 import section_3_2
from reproduction.parallelism_2015 import table_5 as table_5_of_2015
from reproduction.verdict import beside

pytestmark = pytest.mark.slow

REPORTS = Path(__file__).parents[2] / "reports"


@pytest.mark.parametrize(
    ("ours", "total", "theirs", "runs", "same"),
    [
        (10, 10, 2 / 3, 3, True),  # Fisher: p = 0.23
        (10, 10, 1 / 3, 3, False),  # p = 0.04
        (8, 8, 1 / 3, 3, True),  # p = 0.055
        (0, 10, 0, 3, True),
        (81, 81, 0.9, None, False),  # the interval of 81 of 81 begins at 95.5 %
        (9, 10, 0.6, None, True),
        (9, 10, 0.5, None, False),  # it begins at 55.5 %
    ],
)
def test_shares_of_few_runs(
    ours: int, total: int, theirs: float, runs: int | None, same: bool
) -> None:
    assert shares.same(ours, total, theirs, runs) is same
    paper = pd.DataFrame(
        {"what": ["row"], "quantity": "unstable", "unit": "%", "paper": [100 * theirs],
         "paper_spread": math.nan, "rounding": 0.5}
    )  # fmt: skip
    judged = shares.decided(paper, {"row": (ours, total)}, runs)
    (verdict,) = beside(judged, {("row", "unstable"): 100 * ours / total})["verdict"]
    equal = abs(ours / total - theirs) < 0.1 * theirs + 0.005
    assert verdict == ("reproduced" if equal else "cannot tell" if same else "differs")


def test_seeds_that_cannot_tell_say_nothing() -> None:
    assert smaller([1.0, 1.1, 0.9], [2.0, 2.1, 2.2]) is True
    assert smaller([2.0, 2.1, 2.2], [1.0, 1.1, 0.9]) is False
    assert smaller([1.0, 3.0, 2.0], [2.0, 1.0, 3.0]) == ()
    assert ratio_interval([1.0, 2.0], [2.0, 4.0]) == pytest.approx((0.5, 0.5, 0.5))
    assert ratio_interval([1.0], [2.0])[1:] == (0.0, math.inf)


def test_an_interval_is_that_of_a_t_test() -> None:
    estimate = interval([1.0, 2.0, 3.0])
    half = 4.302653 / 3**0.5  # the 97.5 % point of t with two degrees of freedom
    assert (estimate.mean, estimate.std) == (2.0, 1.0)
    assert estimate.error == pytest.approx(1 / 3**0.5)
    assert (estimate.low, estimate.high) == pytest.approx((2 - half, 2 + half))
    assert estimate.detectable == pytest.approx(half + 1.060660 / 3**0.5)  # the 80 % point
    assert (interval([1.0]).low, interval([1.0]).detectable) == (-math.inf, math.inf)
    assert interval([1.0, math.inf]).low == math.inf


def test_a_device_keeps_half_a_gib_and_a_model_at_the_limit_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = quantizers("32bit")
    need = memory.architectures()["mT5-large"].training(full, 512) / memory.GIB
    assert 23.5 < need < 24
    assert memory.max_model("mT5", 24, full, 512) == "mT5-base"
    assert memory.max_model("mT5", need + 0.51, full, 512) == "mT5-large"
    monkeypatch.setattr(memory, "RESERVE", 0.0)
    assert memory.max_model("mT5", 24, full, 512) == "mT5-large"


def test_the_page_names_the_models_near_a_limit(tmp_path: Path) -> None:
    finding = max_model_size.find(table_2.build(Context(tmp_path)))
    assert "mT5-large with 32 bits needs 23.54 of 24" in finding.why
    assert all(statement.holds for statement in finding.statements)


def errors(blocks: float, noise: float) -> pd.DataFrame:
    rows = []
    for seed in range(5):
        for factor, spec in zip(
            (1.0, blocks * (1 + noise * seed)), appendix_c.PAIRS.values(), strict=True
        ):
            value = factor * 10.0**seed
            row = dict.fromkeys(appendix_c.COLUMNS.values(), value)
            rows.append({"quantizer": spec, "zeroed_share": 0.0, **row})
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("blocks", "noise", "holds", "verdict"),
    [
        (0.5, 0.0, True, "same ordering"),  # however far apart the seeds are
        (1.5, 0.0, False, "not compared"),
        (0.5, 0.9, False, "not compared"),
    ],
)
def test_appendix_c_is_judged_by_our_own_seeds(
    blocks: float, noise: float, holds: bool, verdict: str
) -> None:
    frame = errors(blocks, noise)
    finding = appendix_c.find({"by-seed": frame, "compared": frame})
    assert [statement.holds for statement in finding.statements] == [holds] * 2
    assert finding.numbers is not None
    printed = finding.numbers[finding.numbers["paper"].notna()]
    assert set(printed["verdict"]) == {verdict}


def test_most_of_a_tensor_must_fall_to_zero(tmp_path: Path) -> None:
    def holds(share: float) -> bool:
        rows = [
            {"tensor": "w", "quantizer": spec, "zeroed": zeroed, "zeroed_twice_the_decades": 0.9}
            for spec, zeroed in ((figure_3.WITH, share), (figure_3.WITHOUT, 0.0))
        ]
        histogram = pd.DataFrame(
            {"quantizer": [figure_3.WITH, figure_3.WITHOUT], "zero_share": [share, 0.0]}
        )
        finding = figure_3.find({"shares": pd.DataFrame(rows), "histogram": histogram})
        return finding.statements[0].holds is True

    assert holds(0.6)
    assert not holds(0.4)


@pytest.mark.parametrize(
    ("ours", "squared", "pretrained", "model"),
    [(0.01, 0.3, None, False), (0.01, 0.6, None, True), (0.01, 0.3, 0.2, True),
     (0.01, 0.3, 0.09, False)],
)  # fmt: skip
def test_another_model_has_many_times_as_many_zeros(
    ours: float, squared: float, pretrained: float | None, model: bool
) -> None:
    def rows(share: float) -> pd.DataFrame:
        return pd.DataFrame(
            {"tensor": "w", "quantizer": spec, "zeroed": share * (spec == figure_3.WITH),
             "zeroed_twice_the_decades": squared}
            for spec in (figure_3.WITH, figure_3.WITHOUT)
        )  # fmt: skip

    histogram = pd.DataFrame(
        {"quantizer": [figure_3.WITH, figure_3.WITHOUT], "zero_share": [ours, 0.0]}
    )
    frames = {"shares": rows(ours), "histogram": histogram}
    if pretrained is not None:
        frames["pretrained-shares"] = rows(pretrained)
    (difference,) = figure_3.find(frames).differences
    assert difference.elsewhere is model
    assert ("20 % of one fall to zero" in difference.why) is (pretrained == 0.2)


def test_table_6_tests_the_statement_of_the_paper() -> None:
    context = Context(Path(), reports=REPORTS)
    frames = dict(table_6.build(context))
    small = "Smaller blocks of the first moment lower the loss (docstring-lm, 8 seeds)."
    good = table_6.find(frames)
    assert [statement.holds for statement in good.statements if statement.text == small] == [True]
    swapped = {"B2048/DE@4s + 32bit": "B128/DE@4s + 32bit"}
    swapped |= {new: old for old, new in swapped.items()}
    runs = frames["runs"].replace({"quantizer": swapped})
    worse = table_6.find({**frames, "runs": runs})
    assert [statement.holds for statement in worse.statements if statement.text == small] == [False]


def test_table_6_asks_other_models_whether_factorizing_helps() -> None:
    tuned = pd.read_csv(REPORTS / "tuned.csv")
    text = "Factorizing the second moment lowers it ({}, 8 seeds, each at its own best rate)."
    by_text = {statement.text: statement.holds for statement in table_6.tuned_factored(tuned)}
    assert by_text == {text.format("stdlib-lm-tiny"): True, text.format("digits"): ()}
    assert table_6.factored(tuned).elsewhere
    names = {"AdamW": "AdamWFactor", "AdamWFactor": "AdamW"}
    swapped = tuned.replace({"optimizer": names})
    assert [statement.holds for statement in table_6.tuned_factored(swapped)] == [(), False]
    assert not table_6.factored(swapped).elsewhere


def test_table_6_has_the_rows_that_other_models_have() -> None:
    frames = table_6.build(Context(Path(), reports=REPORTS))
    numbers = table_6.find(frames).numbers
    assert numbers is not None
    by_judge = numbers.groupby("proxy", sort=False)["verdict"].agg(list)
    assert by_judge["validation loss, minilm"] == ["cannot tell"] * 3
    assert by_judge["validation loss, digits"] == ["cannot tell"] * 2
    by_task = frames["judges"]
    worse = by_task.assign(difference=-by_task["difference"], high=-by_task["low"])
    crossed = table_6.find({**frames, "judges": worse}).numbers
    assert crossed is not None
    of_encoder = crossed[crossed["proxy"] == "validation loss, minilm"]["verdict"]
    assert of_encoder.tolist() == ["differs", "cannot tell", "differs"]


def test_a_task_that_cannot_tell_is_not_compared() -> None:
    def holds(low: float, high: float) -> list[object]:
        row = {"judge": "w", "quantizer": "q", "base": 1.0, "seeds": 8,
               "difference": (low + high) / 2, "low": low, "high": high}  # fmt: skip
        return [
            statement.holds for statement in committed.alike(pd.DataFrame([row]), "q", "4 bits")
        ]

    assert holds(-0.004, 0.004) == [True]
    assert holds(0.006, 0.03) == [False]
    assert holds(-0.03, -0.006) == [False]
    assert holds(-0.006, 0.006) == [()]
    assert holds(0.0028, 0.0115) == [()]  # behind, and by more or by less than the margin
    assert holds(math.inf, math.inf) == [False]  # a run diverged


def test_the_margin_is_narrower_than_a_known_loss() -> None:
    by_task = committed.by_task(Context(Path(), reports=REPORTS))
    of = by_task[by_task["quantizer"] == figure_4.PAIR].set_index("judge")
    assert of["difference"]["minilm"] > committed.margin(of["base"]["minilm"])
    assert committed.margin(0.03) == pytest.approx(0.0006)  # 2 % of a small loss
    (statement,) = [
        claim
        for claim in committed.alike(by_task, figure_4.PAIR, "4 bits")
        if "minilm" in claim.text
    ]
    assert statement.verdict is Verdict.UNDECIDED


def test_a_measurement_is_a_statement_of_one_exhibit() -> None:
    context = Context(Path(), reports=REPORTS)
    findings = [
        exhibit.find(exhibit.build(context)) for exhibit in (table_2_of_4.EXHIBIT, table_6.EXHIBIT)
    ]
    texts = [statement.text for finding in findings for statement in finding.statements]
    assert len(texts) == len(set(texts))
    assert [text for text in texts if text.startswith("4-bit AdamW ends") and "minilm" in text]


def test_times_of_two_kinds_of_machines_are_not_comparable_whether_they_agree_or_not() -> None:
    """Times without one of ours are not compared, like all numbers."""
    context, alone = Context(Path(), reports=REPORTS), 0
    for exhibit in (table_1_of_8.EXHIBIT, table_5_of_8.EXHIBIT, table_4_of_4.EXHIBIT,
                    section_3_2.EXHIBIT, table_5_of_2015.EXHIBIT):  # fmt: skip
        numbers = explain(exhibit.find(exhibit.build(context)), exhibit.timed).numbers
        assert numbers is not None
        timed = (
            numbers["quantity"].str.contains("time|latency|^Adam$|^LAMB$")
            & numbers["paper"].notna()
        )
        assert timed.any()
        doubted = numbers["verdict"] == Verdict.DOUBT.value
        measured = numbers["ours"].notna()
        assert set(numbers.loc[timed & ~doubted & measured, "verdict"]) <= {"not comparable"}
        assert set(numbers.loc[timed & ~measured, "verdict"]) <= {"not compared"}
        alone += (timed & ~measured).sum()
    assert alone == 33


def test_orders_in_other_tasks_of_a_paper_are_no_control() -> None:
    context = Context(Path(), reports=REPORTS)
    finding = table_2_of_4.EXHIBIT.find(table_2_of_4.EXHIBIT.build(context))
    explained = explain(finding)
    assert explained.differences
    assert not any(difference.elsewhere for difference in explained.differences)
    assert Verdict.ELSEWHERE not in explained.verdicts
    assert explained.verdict is Verdict.CONTRADICTS


def test_a_row_beside_others_that_spreads_hide_cannot_tell() -> None:
    """Without blocks the paper's 8 bits are worse than 32; ours lie within two errors."""
    numbers = table_3.find(table_3.build(Context(Path(), reports=REPORTS))).numbers
    assert numbers is not None
    row = numbers[(numbers["what"] == "8 | yes | no | no") & (numbers["paper"] == 18.6)]
    assert row["verdict"].tolist() == ["cannot tell"]
    assert row["ours"].tolist() == pytest.approx([15.80], abs=0.005)


def test_shares_that_fall_through_the_papers_as_eps_grows_explain_them(tmp_path: Path) -> None:
    frames = dict(table_3.build(Context(tmp_path, reports=REPORTS)))

    def linear(eps: pd.DataFrame) -> Difference:
        differences = table_3.find({**frames, "eps": eps}).differences
        return next(
            difference
            for difference in differences
            if "only eps bounds the update" in difference.why
        )

    eps = frames["eps"]
    assert linear(eps).elsewhere
    assert "8 | no | no | yes (the paper has 50 %): 100 % with 1e-8" in linear(eps).why
    always = eps.assign(failed=eps["runs"])
    assert not linear(always).elsewhere
    assert not linear(always.assign(failed=0)).elsewhere
    of_one = eps["setting"] == "8 | no | no | yes"
    assert not linear(eps.assign(failed=eps["failed"].where(~of_one, eps["runs"]))).elsewhere


def test_first_moments_of_the_paper_are_some_ten_thousand_times_smaller() -> None:
    table = pd.read_csv(REPORTS / "8-bit-optimizers" / "table-6.csv")
    table = table[table["quantity"] == "absolute quantization error"].set_index("what")
    assert 3e3 < table.loc["linear", "ours"] / table.loc["linear", "paper"] < 3e4


@pytest.mark.parametrize(
    ("difference", "std", "seeds", "aligned"),
    [
        (0.003, 0.001, 4, True),  # 0.003 and 3.18 * 0.0005
        (0.003, 0.004, 4, ()),  # the seeds leave more open
        (-0.05, 0.001, 4, False),  # far below is not aligned either
        (0.003, math.nan, 1, ()),  # one seed proves nothing
    ],
)
def test_losses_are_aligned_if_the_whole_interval_is_small(
    difference: float, std: float, seeds: int, aligned: object
) -> None:
    rows = pd.DataFrame(
        {"mean": [2.001, 2.0], "difference": [difference, 0.0], "difference_std": [std, 0.0],
         "seeds": seeds},
        index=[figure_4.PAPER.label, figure_4.BASE.label],
    )  # fmt: skip
    low, high = committed.from_summary(rows.iloc[0].to_dict())
    assert committed.within(low, high, 2.0) == aligned
