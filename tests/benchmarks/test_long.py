"""The study of both roundings: its plan, its control, and its page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from benchmarks import long
from benchmarks.long_run import JUDGE, WORKLOAD
from benchmarks.trials import FULL
from qmaps.algebra.pair import Pair

FOLDER = Path(__file__).parents[2] / long.FOLDER


def test_each_seed_has_all_arms_at_both_rates() -> None:
    runs = list(long.plan(WORKLOAD, 3))
    size = len(long.ARMS) * len(long.RATES)
    assert len(runs) == len({run.key for run in runs}) == 3 * size
    for seed in range(3):
        own = runs[seed * size : (seed + 1) * size]
        assert {run.seed for run in own} == {seed}
        assert {(run.quantizer, run.workload.lr) for run in own} == {
            (quantizer, rate) for quantizer in long.ARMS.values() for rate in long.RATES
        }
    for quantizer in {*long.ARMS.values()} - {long.CONTROL}:
        assert str(Pair.parse(quantizer) if quantizer != FULL else FULL) == quantizer


def test_the_control_begins_from_other_last_bits() -> None:
    work = replace(WORKLOAD, steps=10)
    exact, nudged = (work.build() for _ in range(2))
    nudged.load_state_dict(exact.state_dict())
    made = [
        long.Run(JUDGE, work, quantizer, 0).optimizer(model, work)
        for quantizer, model in ((FULL, exact), (long.CONTROL, nudged))
    ]
    assert type(made[0]) is type(made[1]) is torch.optim.AdamW
    for a, b in zip(exact.parameters(), nudged.parameters(), strict=True):
        assert not torch.equal(a, b) or not bool(a.any())
        torch.testing.assert_close(a, b, rtol=3e-7, atol=0)


def test_the_page_compares_seed_by_seed() -> None:
    rows = [
        {"lr": 0.012, "quantizer": quantizer, "seed": seed, "loss": 1.5 + loss + seed}
        for quantizer, losses in ((FULL, (0, 0)), (long.ARMS["4bit"], (0.02, 0.04)))
        for seed, loss in enumerate(losses)
    ]
    page = long.page(pd.DataFrame(rows), "the command")
    four = next(line for line in page.splitlines() if line.startswith("| 4bit |"))
    assert four.startswith(f"| 4bit | `{long.ARMS['4bit']}` | 2 | +0.0300 (")
    assert four.endswith("| +0.0300 | 0.0141 | 1 |")  # seed 1 lies 1 nat above the median
    assert "No runs yet." in page  # at the other rate


@pytest.mark.skipif(not (FOLDER / long.TRIALS).exists(), reason="no run is committed")
def test_the_committed_page_is_that_of_the_rows() -> None:
    frame = pd.read_csv(FOLDER / long.TRIALS)
    page = long.page(frame, "python -m benchmarks.long report")
    assert page.rstrip() in (FOLDER / "README.md").read_text()
