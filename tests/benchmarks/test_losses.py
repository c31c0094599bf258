"""Losses at tuned rates: a best rate is inside the grid, and each row has its own baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmarks.losses import __main__ as command
from benchmarks.losses import tune
from benchmarks.losses.methods import CLASSES, METHODS, MethodTrial
from benchmarks.losses.page import MANY, differences, page
from benchmarks.losses.studies import PAPER_8BIT, SEEDS, STUDIES, Group, Row
from benchmarks.paired import detectable
from benchmarks.trials import FULL
from qmaps.errors import QmapsError
from qmaps.lab.workloads.stdlib_lm import StdlibLMTiny

pytestmark = pytest.mark.slow

REPORTS = Path(__file__).parents[2] / "reports" / "losses"
WORK = StdlibLMTiny(steps=2, warmup_steps=1, validation_batches=1)
GROUP = Group("tiny", WORK, "AdamW", (Row(PAPER_8BIT), Row(FULL, changes=(("eps", 1e-6),))))
LOWS = {
    "AdamW": PAPER_8BIT, "AdamWFactor": PAPER_8BIT, "Adam": PAPER_8BIT, "Momentum": "B2048/DE@8s",
    "LPMM-SGDM": "8 stochastic", "LPMM-Adam": "8 stochastic", "Adafactor": "",
    "SOAP": "B128/DE@4s | B256/DE@8s + B128/DE-0@4u",
    **{f"optim.{name}": "4bit" for name in CLASSES},
}  # fmt: skip


def losses(monkeypatch: pytest.MonkeyPatch, of: dict[float, float]) -> list[MethodTrial]:
    """Replace training by a table of losses by multiple of the rate; return the trials."""
    trained: list[MethodTrial] = []

    def run_all(plan: Sequence[MethodTrial], *_: Any, **__: Any) -> pd.DataFrame:
        trained.extend(plan)
        return pd.DataFrame(
            {"judge": trial.judge, "quantizer": trial.quantizer, "lr": trial.workload.lr,
             "seed": trial.seed, "steps": 2,
             "loss": of.get(trial.workload.lr / WORK.lr, 9.0) + trial.seed}
            for trial in plan
        )  # fmt: skip

    monkeypatch.setattr(tune, "run_all", run_all)
    return trained


@pytest.mark.parametrize(
    ("of", "best"),
    [
        ({0.5: 3, 1: 1, 2: 2}, 1),
        ({0.5: 1, 1: 2, 2: 3, 0.25: 2}, 0.5),
        ({0.5: 3, 1: 2, 2: 1, 4: 0.5}, 4),
        ({0.5: math.nan, 1: math.nan, 2: 1}, 2),
    ],
)
def test_a_best_rate_has_neighbours_on_both_sides(
    of: dict[float, float], best: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = losses(monkeypatch, of)
    rate, swept = tune.best(GROUP, tmp_path, 1)
    assert rate == best
    tried = {trial.workload.lr / WORK.lr for trial in trained}
    assert {best / 2, best, best * 2} <= tried
    assert len(swept) == GROUP.rate_seeds * len(tried)
    assert {trial.quantizer for trial in trained} == {FULL}


def test_a_rate_that_only_gets_better_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses(monkeypatch, {2.0**n: -float(n) for n in range(20)})
    with pytest.raises(QmapsError, match="no best rate up to 256 times"):
        tune.best(GROUP, tmp_path, 1)


def test_rows_are_trained_at_the_best_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses(monkeypatch, {0.5: math.nan, 1: 2, 2: 1})
    frame = tune.run(GROUP, tmp_path, 1, seeds=4)
    rows = frame[frame["best"]]
    start = WORK.validate(WORK.model(0))["loss"]
    unstable = frame[frame["unstable"]]["loss"]
    assert unstable.isna().any()
    assert (unstable.dropna() > start).all()
    assert (frame[~frame["unstable"]]["loss"] <= start).all()
    assert rows["lr"].unique() == pytest.approx([2 * WORK.lr])
    assert len(rows) == 4 * 3
    assert set(zip(rows["quantizer"], rows["eps"], strict=True)) == {
        (FULL, 1e-8), (PAPER_8BIT, 1e-8), (FULL, 1e-6),
    }  # fmt: skip


def test_differences_are_those_of_seeds_at_the_same_hyperparameters() -> None:
    rows = [
        {"group": "g", "optimizer": "AdamW", "quantizer": quantizer, "lr": lr, "beta1": 0.9,
         "beta2": 0.999, "eps": 1e-8, "seed": seed, "loss": loss + seed, "unstable": False,
         "best": True, "steps": 2, "N": 1}
        for quantizer, lr, loss in ((FULL, 0.1, 1.0), ("q", 0.1, 1.5), (FULL, 0.2, 3.0),
                                    ("q", 0.2, 3.25))
        for seed in range(3)
    ]  # fmt: skip
    frame = pd.DataFrame(rows)
    by_rate = differences(frame).set_index(["quantizer", "lr"])["difference"]
    assert by_rate["q", 0.1] == pytest.approx(0.5)
    assert by_rate["q", 0.2] == pytest.approx(0.25)
    frame = pd.concat([frame, frame[frame["quantizer"] == FULL].assign(best=False)])
    text = page("name", "About.\n\n    More.", frame, "COMMAND")
    assert "\n\nAbout.\n\nMore.\n\n" in text
    assert "| **0.1** | 3 | 2.0000 |" in text
    assert "| optimizer | quantizer | lr | seeds |" in text
    assert "+0.5000 to +0.5000" in text


def test_a_page_counts_steps_and_shows_no_difference_of_runs_that_diverged() -> None:
    rows = [
        {"group": "g", "optimizer": "LPMM-SGDM", "quantizer": quantizer, "lr": 0.1, "beta1": 0.9,
         "beta2": 0.999, "eps": 1e-8, "seed": seed, "loss": loss, "unstable": quantizer == "bad",
         "best": best, "steps": 800, "N": 4}
        for quantizer, loss in ((FULL, 1.0), ("q", 1.5), ("bad", 74842.4))
        for seed in range(3)
        for best in ((True, False) if quantizer == FULL else (True,))
    ]  # fmt: skip
    text = page("name", "About.", pd.DataFrame(rows), "COMMAND")
    assert "\n200 steps of 4 micro-batches.\n" in text
    assert "| LPMM-SGDM | bad | 3 | 3 | 7.48e+04 |  |  |  |  |" in text
    assert "| LPMM-SGDM | q | 3 | 0 | 1.5000 | +0.5000 |" in text


def test_a_page_of_many_groups_begins_with_all_of_them() -> None:
    rows = [
        {"group": f"w, {number}", "optimizer": f"{number}", "quantizer": quantizer, "lr": 0.1,
         "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "seed": seed, "loss": loss + noise * seed,
         "unstable": False, "best": best, "steps": 2, "N": 1}
        for number in range(MANY)
        for quantizer, loss, noise in ((FULL, 1.0, 0.0), ("q", 1.0 + number, 0.1))
        for seed in range(3)
        for best in ((True, False) if quantizer == FULL else (True,))
    ]  # fmt: skip
    frame = pd.DataFrame(rows)
    text = page("name", "About.", frame, "COMMAND")
    table = text.split("leaves out 0.\n\n")[1].split("\n\n##")[0].splitlines()
    assert len(table) == 2 + MANY
    assert "| 0 | q | +0.1000 | -0.1484 to +0.3484 |" in table[2]
    assert "| 7 | q | **+7.1000** |" in table[9]
    assert "All groups" not in page("name", "About.", frame[frame["group"] != "w, 0"], "COMMAND")


def test_the_rates_of_classes_are_those_of_the_workload() -> None:
    work = replace(WORK, lr=0.125)
    for name in CLASSES:
        for quantizer in (FULL, "8bit"):
            trial = MethodTrial("tiny", work, quantizer, 0, family=f"optim.{name}")
            optimizer = trial.optimizer(work.model(0), work)
            assert optimizer.param_groups[0]["lr"] == 0.125, name
            assert type(optimizer).__name__.startswith(name)


def test_detectable_difference_of_seeds() -> None:
    assert detectable(1.0, 8) == pytest.approx((2.364624 + 0.896030) / 8**0.5)
    assert math.isnan(detectable(1.0, 1))


@pytest.mark.parametrize("family", METHODS)
def test_every_family_trains_in_32_bits_and_in_few(family: str) -> None:
    # The first momenta of SM3 have one magnitude, exact in 4 bits.
    longer = ("Momentum", "optim.Adagrad", "optim.LARS", "optim.SM3")
    work = replace(WORK, lr=0.1, steps=4) if family in longer else WORK
    group = Group("tiny", work, family, n=2 if family == "LPMM-SGDM" else 1)
    full = group.baseline(1.0, 0).run()
    assert full["quantizer"] == FULL
    assert full["loss"] < 6
    if LOWS[family]:
        low = group.trial(Row(LOWS[family]), 1.0, 0).run()
        assert low["loss"] != full["loss"]
        assert low["state_mib"] < full["state_mib"]


def test_keys_of_runs_are_distinct() -> None:
    baseline = GROUP.baseline(1.0, 0)
    changed = [GROUP.baseline(2.0, 0), GROUP.trial(GROUP.rows[1], 1.0, 0),
              replace(baseline, family="Adam"), replace(baseline, n=2)]  # fmt: skip
    assert len({trial.key for trial in [baseline, *changed]}) == 5


@pytest.mark.parametrize("name", STUDIES)
def test_committed_rates_lie_inside_their_range_and_rows_have_all_seeds(name: str) -> None:
    frame = pd.read_csv(REPORTS / f"{name}.csv")
    groups = list(STUDIES[name]())
    assert frame["group"].nunique() == len(groups)
    for group, (_, rows) in zip(groups, frame.groupby("group", sort=False), strict=True):
        means = rows[~rows["best"]].groupby("lr")["loss"].mean()
        assert means.index.min() < means.idxmin() < means.index.max()
        chosen = rows[rows["best"] & (rows["quantizer"] == FULL)]
        assert means.idxmin() in chosen["lr"].unique()
        assert len(rows[rows["best"]]) == SEEDS * len({Row(FULL), *group.rows})


def test_a_study_that_is_misspelt_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["lpmm-adm"])
    assert "unknown study 'lpmm-adm'" in capsys.readouterr().err
