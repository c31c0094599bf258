"""The ablations, small."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from benchmarks import ablations
from benchmarks.ablations import __main__ as command
from benchmarks.ablations import eight_bit, eight_bit_eps, four_bit
from benchmarks.ablations.page import page
from benchmarks.ablations.study import Point, Setting, Study, is_unstable, run, summary
from qmaps.lab.workloads import TrainingRun
from reproduction.claim import Claim, published

pytestmark = pytest.mark.slow

assert ablations.__doc__

SETTINGS = (Setting(("32",)), Setting(("8",), row="8 | no | no | no"))
STUDY = Study(
    name="study",
    title="A study",
    source="a paper, table 1",
    exhibit=("8-bit-optimizers", "table-3"),
    columns=("bits",),
    metric="perplexity",
    settings=SETTINGS,
    points=(Point(), Point(seed=1), Point(seed=2)),
    baseline=lambda setting: "32",
    claims=lambda rows: (
        Claim("8 bits are unstable.", bool(rows.unstable["8"] > 0), "Why not."),
        Claim("8 bits are better.", bool(rows.difference["8"] < 0), "For a reason."),
    ),
)


def rows(setting: str, losses: list[float], unstable: list[bool]) -> pd.DataFrame:
    frame = pd.DataFrame({"setting": setting, "loss": losses, "unstable": unstable})
    return frame.assign(
        lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, seed=range(len(losses)), state_mib=1.0
    )


FRAME = pd.concat(
    [
        rows("32", [1.0, 2.0, 4.0], [False, False, True]),
        rows("8", [1.5, 7.0, 4.5], [False, True, False]),
    ]
)


def test_differences_are_taken_where_both_are_stable() -> None:
    found = summary(STUDY, FRAME)
    assert list(found["unstable"].round(1)) == [33.3, 33.3]
    assert list(found["loss"]) == [1.5, 3.0]
    assert list(found["difference"]) == [0.0, 0.5]


def test_a_setting_without_a_stable_run_has_no_loss() -> None:
    frame = FRAME.assign(unstable=FRAME["unstable"] | (FRAME["setting"] == "8"))
    assert summary(STUDY, frame).loc["8", ["loss", "difference"]].isna().all()
    assert "| 100 % | - | - | 1.000 | 90 % | 253.0 |" in page(STUDY, frame, "command")


def test_a_page_says_where_a_claim_does_not_hold_and_why() -> None:
    written = page(STUDY, FRAME, "command")
    assert "- reproduced: 8 bits are unstable.\n" in written
    assert "- **differs**: 8 bits are better. For a reason.\n" in written


@pytest.mark.parametrize(
    ("losses", "unstable"),
    [
        ([4, 3, 9, 9, 3, 2, 2, 2], False),  # it comes back
        ([4, 3, 9, 9, 9, 2, 2, 2], True),
        ([4, 3, float("nan"), 2, 2, 2, 2], True),
        ([4, 3, float("inf"), 2, 2, 2, 2], True),
        ([4, 4, 4, 4, 4, 4], False),
    ],
)
def test_unstable_runs(losses: list[float], unstable: bool) -> None:
    found = [{"metric": "loss", "split": "train", "value": loss} for loss in losses]
    other = {"metric": "accuracy", "split": "val", "value": float("nan")}
    assert is_unstable(TrainingRun("a", 0, len(losses), [*found, other])) is unstable


def test_a_bad_validation_loss_is_unstable() -> None:
    found = [{"metric": "loss", "split": "train", "value": 1.0}]
    last = {"metric": "loss", "split": "val", "value": float("nan")}
    assert is_unstable(TrainingRun("a", 0, 1, found)) is False
    assert is_unstable(TrainingRun("a", 0, 1, [*found, last])) is True


def test_settings_are_those_of_the_papers_tables() -> None:
    for study, larger in ((eight_bit.STUDY, "1."), (four_bit.STUDY, ())):
        names = [setting.name for setting in study.settings]
        assert len(set(names)) == len(names)
        assert {study.baseline(setting) for setting in study.settings} <= set(names)
        rows = {row for row in published(*study.exhibit)["what"] if not row.startswith(larger)}
        assert rows <= {setting.row or setting.name for setting in study.settings}
    assert len(eight_bit.STUDY.points) == 81


def test_a_setting_multiplies_the_eps_of_a_point(tmp_path: Path) -> None:
    settings = (Setting(("8", "1"), "8bit"), Setting(("8", "1e5"), "8bit", eps=1e5))
    rows = [run(STUDY, each, Point(eps=1e-8), 2, tmp_path) for each in settings]
    assert [row["eps"] for row in rows] == [1e-8, pytest.approx(1e-3)]
    assert rows[0]["loss"] != rows[1]["loss"]


def test_larger_eps_have_the_linear_maps_of_the_table() -> None:
    plain = {setting.name: setting for setting in eight_bit.STUDY.settings}
    for setting in eight_bit_eps.STUDY.settings:
        of_table = plain[setting.name.rpartition(" | ")[0]]
        assert setting.row == of_table.name
        assert setting.state_quantizers == of_table.state_quantizers
        assert setting.stable_embedding == of_table.stable_embedding
        assert eight_bit_eps.STUDY.baseline(setting).startswith("32 | - | - | ")
    assert {setting.eps for setting in eight_bit_eps.STUDY.settings} == set(eight_bit_eps.FACTORS)


def test_runs_are_written_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = replace(eight_bit.STUDY, settings=eight_bit.STUDY.settings[:5], claims=lambda _: ())
    monkeypatch.setitem(command.STUDIES, "eight-bit", small)
    given = ["eight-bit", "--points", "1", "--steps", "2", "--runs", str(tmp_path / "runs")]
    for _ in range(2):
        assert command.main([*given, "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[:5] == printed[5:]
    frame = pd.read_csv(tmp_path / "out" / "eight-bit.csv")
    assert list(frame["setting"]) == [setting.name for setting in small.settings]
    assert frame["loss"].nunique() > 1
    assert sorted(path.suffix for path in (tmp_path / "out").iterdir()) == [".csv", ".md", ".png"]


def test_an_unknown_study(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["nine-bit"])
    message = "error: STUDY='nine-bit' is none of eight-bit, eight-bit-eps, four-bit\n"
    assert capsys.readouterr().err.endswith(message)
