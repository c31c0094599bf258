"""The benchmark of APOLLO's projections."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from benchmarks import apollo
from benchmarks.apollo import APOLLO, BLOCKS, CONTROLS, FACTORED, OPTIONS, RANK, WIDTH, ApolloTrial
from benchmarks.trials import run_all
from qmaps.lab.workloads.stdlib_lm import StdlibLMTiny

pytestmark = pytest.mark.slow

WORK = StdlibLMTiny(steps=3, warmup_steps=1, validation_batches=1)


def test_the_two_are_told_apart_and_keep_different_states(tmp_path: Path) -> None:
    trials = [ApolloTrial("x", WORK, name, 0) for name in OPTIONS]
    frame = run_all(trials, tmp_path, workers=1).set_index("quantizer")
    assert frame["loss"].nunique() == len(OPTIONS)
    assert frame.loc[FACTORED, "state_mib"] < frame.loc[APOLLO, "state_mib"]


def test_a_trial_of_another_rank_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = ApolloTrial("x", WORK, APOLLO, 0)
    key = trial.key
    assert replace(trial, quantizer=FACTORED).key != key
    monkeypatch.setitem(OPTIONS, APOLLO, {"apollo_rank": RANK + 1})
    assert trial.key != key


def test_the_optimizers_are_those_of_the_project_page() -> None:
    for name, rank in ((FACTORED, 0), (APOLLO, RANK)):
        trial = ApolloTrial("x", WORK, name, 0).at(2.0)
        (group,) = trial.optimizer(trial.workload.model(0), trial.workload).param_groups
        assert (group["apollo_rank"], group["lr"]) == (rank, 2 * WORK.lr)
        assert (group["beta2"], group["relative_step"]) == (0.999, False)


def test_controls_have_the_full_rank_or_leave_out_embeddings_and_the_output() -> None:
    assert StdlibLMTiny().model(0).state_dict()["tokens.weight"].shape[1] == WIDTH
    assert {OPTIONS[name]["apollo_rank"] for name in CONTROLS} == {RANK, WIDTH}
    trial = ApolloTrial("x", WORK, BLOCKS, 0)
    model = trial.workload.model(0)
    projected, others = trial.optimizer(model, trial.workload).param_groups
    assert (projected["apollo_rank"], others["apollo_rank"]) == (RANK, 0)
    outside = {id(param) for param in others["params"]}
    left = {name for name, param in model.named_parameters() if id(param) in outside}
    assert left == {"tokens.weight", "positions.weight", "norm.weight", "norm.bias", "head.weight"}


def frame() -> pd.DataFrame:
    """A sweep of two rates and a contest of three seeds."""
    rows = [
        {"part": part, "quantizer": name, "lr": rate, "steps": 7, "seed": seed, "state_mib": 0.5,
         "loss": 2.0 + seed + (0.1 + 0.01 * seed) * (name != FACTORED) + (rate != 0.1)}
        for part, rates, seeds in (("sweep", (0.1, 0.2), 2), ("contest", (0.1,), 3))
        for name in OPTIONS for rate in rates for seed in range(seeds)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_differences_are_paired_by_seed() -> None:
    rows = frame()
    found = apollo.difference(rows[rows["part"] == "contest"])
    assert (found["seeds"], found["factored"]) == (3, pytest.approx(3.0))
    assert found["difference"] == pytest.approx(0.11)
    assert found["high"] - found["low"] == pytest.approx(2 * 4.302653 * 0.01 / 3**0.5)


def test_the_report_has_each_at_its_rate() -> None:
    text = apollo.page(frame(), "COMMAND")
    assert "\n`COMMAND`\n" in text
    assert "| factored | 0.1 | 3.0000 | 0.500 |" in text
    assert "| APOLLO | 0.2 | 2 | 3.6050 |" in text
    assert "(3 seeds): +0.1100, 95 % from +0.0852 to +0.1348." in text
