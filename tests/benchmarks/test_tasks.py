"""Differences of models at their tuned learning rates, in steps."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from benchmarks import tasks
from benchmarks.trials import FULL
from qmaps.errors import BadValueError
from reproduction.tasks import TASKS, task

pytestmark = pytest.mark.slow


def rows(differences: dict[str, list[float]]) -> pd.DataFrame:
    """Rows on ``lm-tiny``: 32 bits at three learning rates, other quantizers at the tuned one."""
    lr = TASKS["lm-tiny"].lr
    records = [(FULL, lr * factor, seed, 2.0 + abs(factor - 1) + 0.1 * seed)
             for factor in (0.5, 1, 2) for seed in range(3)]  # fmt: skip
    records += [(q, lr, seed, 2.0 + 0.1 * seed + d)
              for q, values in differences.items() for seed, d in enumerate(values)]  # fmt: skip
    frame = pd.DataFrame(records, columns=["quantizer", "lr", "seed", "loss"])
    return frame.assign(judge="lm-tiny", steps=300, seconds=1.0)


def other_lengths() -> pd.DataFrame:
    """32 bits on ``lm-tiny``; the loss falls by half the logarithm of the steps."""
    records = [(round(300 * length), seed, 2.0 + 0.1 * seed - 0.5 * math.log(length))
             for length in (0.7, 1.4) for seed in range(3)]  # fmt: skip
    frame = pd.DataFrame(records, columns=["steps", "seed", "loss"])
    return frame.assign(judge="lm-tiny", quantizer=FULL, lr=TASKS["lm-tiny"].lr)


def test_differences_in_steps() -> None:
    differences = {"more": [0.25, 0.25, 0.25], "two seeds": [0.005, 0.005]}
    table = tasks.slower(rows(differences), other_lengths()).set_index("quantizer")
    assert table.loc["more", "steps"] == pytest.approx(math.exp(0.25 / 0.5) - 1)
    assert table["outcome"].to_dict() == {"more": "worse", "two seeds": "equivalent"}
    assert table["seeds"].to_dict() == {"more": 3, "two seeds": 2}


def test_an_unknown_task() -> None:
    with pytest.raises(BadValueError, match=r"task='lm-tny' is unknown; allowed are digits, lm-"):
        task("lm-tny")


@pytest.mark.parametrize("name", TASKS)
def test_a_rate_is_the_best_of_the_committed_sweep_and_inside_it(name: str) -> None:
    frame = pd.read_csv(tasks.RUNS)
    full = frame[(frame["quantizer"] == FULL) & (frame["judge"] == name)]
    means = (
        full[full["seed"] < full.groupby("lr")["seed"].nunique().min()].groupby("lr")["loss"].mean()
    )
    assert means.idxmin() == pytest.approx(TASKS[name].lr)
    assert means.index.min() < TASKS[name].lr < means.index.max()
