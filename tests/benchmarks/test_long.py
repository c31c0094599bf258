"""The study of long trainings: its plan, its control, its tasks and its page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import long
from benchmarks.long_run import TASK, WORKLOAD
from benchmarks.trials import FULL
from qmaps.algebra.pair import Pair
from qmaps.lab.workloads import Workload
from qmaps.optim.presets import pair_of

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / long.FOLDER
TASKS = [study.work for study in long.STUDIES if study.work is not None]


def test_each_seed_has_all_arms_of_all_studies() -> None:
    runs = list(long.plan(WORKLOAD, 5))
    assert len(runs) == len({run.key for run in runs})
    for study in (*long.STUDIES, *long.SHORTER):
        steps = {study.steps, *(round(study.steps * length) for length in long.LENGTHS)}
        planned = [
            run
            for run in runs
            if (run.judge, run.workload.lr) == (study.task, study.rate)
            and run.workload.steps in steps
        ]
        for seed in range(5):
            of_seed = [run for run in planned if run.seed == seed]
            lengths = len(long.LENGTHS) if seed < long.CURVE_SEEDS else 0
            arms = study.arms if seed < long.FULL_SEEDS else long.CORE
            assert len(of_seed) == len(arms) + lengths
            full_length = of_seed[: len(arms)]
            assert [run.quantizer for run in full_length] == [long.ARMS[arm] for arm in arms]
            assert len({run.workload.steps for run in of_seed}) == 1 + lengths
    assert [run.seed for run in runs] == sorted(run.seed for run in runs)
    for quantizer in {*long.ARMS.values()} - {FULL, long.CONTROL}:
        assert str(Pair.parse(quantizer)) == quantizer


def test_the_new_arms_are_the_presets() -> None:
    assert {name: pair_of(name).spec for name in long.NEW} == long.NEW


def test_the_control_begins_from_other_last_bits() -> None:
    work = replace(WORKLOAD, steps=10)
    exact, nudged = (work.build() for _ in range(2))
    nudged.load_state_dict(exact.state_dict())
    optimizers = [
        long.Run(TASK, work, quantizer, 0).optimizer(model, work)
        for quantizer, model in ((FULL, exact), (long.CONTROL, nudged))
    ]
    assert type(optimizers[0]) is type(optimizers[1]) is torch.optim.AdamW
    for a, b in zip(exact.parameters(), nudged.parameters(), strict=True):
        assert not torch.equal(a, b) or not bool(a.any())
        torch.testing.assert_close(a, b, rtol=3e-7, atol=0)


@pytest.mark.parametrize("work", {work.name: work for work in TASKS}.values(), ids=lambda w: w.name)
def test_a_task_learns_and_repeats_its_result(work: Workload) -> None:
    short = replace(work, steps=150, lr=0.01)
    run = long.Run(work.name, short, long.NEW["4bit"], 3)
    rows = [run.run()["loss"] for _ in range(2)]
    assert rows[0] == rows[1]
    assert rows[0] < short.validate(short.model(3))["loss"]
    model = short.model(0)
    states = run.optimizer(model, short)
    short.loss(model, short.batch(1, 0)).backward()
    states.step()
    quantized = [state["exp_avg_sq"] for state in states.state.values()]
    assert not any(isinstance(state, torch.Tensor) for state in quantized)


def test_a_share_of_steps_and_its_interval() -> None:
    apart = pd.Series([0.02, 0.04, 0.03])
    exact = long.slower(apart, fall=0.5, error=0.0)
    assert exact["mean"] == pytest.approx(np.expm1(0.06))
    assert exact["low"] < exact["mean"] < exact["most"] < exact["high"]
    unsure = long.slower(apart, fall=0.5, error=0.2)
    assert unsure["most"] > exact["most"]
    assert np.isnan(long.slower(apart[:1], fall=0.5, error=0.0)["most"])


def test_the_page_compares_seed_by_seed() -> None:
    study = next(study for study in long.STUDIES if study.task == "teacher")
    same = {"judge": "teacher", "lr": study.rate, "steps": 8000}
    rows = [
        same | {"quantizer": quantizer, "seed": seed, "loss": 0.5 + loss + seed / 100}
        for quantizer, losses in (
            (FULL, (0.0, 0.0, 0.0)),
            (long.CONTROL, (0.001, -0.001, 0.0)),
            (long.ARMS["8bit"], (0.001, 0.002, 0.003)),
            (long.ARMS["2bit"], (0.2, 0.3, 0.1)),
            (long.ARMS["4bit"], (0.1, 0.1, 0.1)),
        )
        for seed, loss in enumerate(losses)
    ]
    for length, fall in ((0.7, -0.04), (1.4, 0.03)):
        rows += [
            same
            | {"steps": round(8000 * length), "quantizer": FULL, "seed": seed}
            | {"loss": 0.5 - fall + seed / 100}
            for seed in range(3)
        ]
    page = long.page(pd.DataFrame(rows), "the command")
    eight = next(line for line in page.splitlines() if line.startswith("| 8bit |"))
    assert eight.startswith(f"| 8bit | `{long.ARMS['8bit']}` | 3 | +0.0020 (")
    assert eight.endswith("| yes (5%) | 0 |")
    four = next(line for line in page.splitlines() if line.startswith("| 4bit |"))
    assert "| 0 |" in four  # its first seeds chose it and do not count
    two = next(line for line in page.splitlines() if line.startswith("| 2bit |"))
    assert two.endswith("|  | 3 |")
    assert "No runs yet." in page  # of the other studies


@pytest.mark.skipif(not (FOLDER / long.TRIALS).exists(), reason="no run is committed")
def test_the_committed_page_is_that_of_the_rows() -> None:
    frame = pd.read_csv(FOLDER / long.TRIALS)
    page = long.page(frame, "python -m benchmarks.long report")
    assert page.rstrip() in (FOLDER / "README.md").read_text()
