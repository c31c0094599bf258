"""Presets of version 0.3 on five models: the differences of the committed rows in steps.

The study is closed; reports/judges.md names the commit with its command.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from benchmarks.blind.equivalence import in_steps
from benchmarks.trials import FULL
from reproduction.tasks import TASKS

REPORTS = Path(__file__).parents[1] / "reports"
RUNS, LENGTHS = REPORTS / "judges.csv", REPORTS / "judges-lengths.csv"
"""Rows of the study, and those of 32 bits for fewer and for more steps."""


def at_own_rate(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of `run_all` at the tuned learning rate of each model."""
    return frame[[row.lr == TASKS[row.judge].lr for row in frame.itertuples()]]


def slower(frame: pd.DataFrame, lengths: pd.DataFrame) -> pd.DataFrame:
    """Differences to 32 bits at the tuned rate, in steps.

    Args:
        frame: rows of `run_all` of `trials`.
        lengths: rows of `run_all` of `lengths`. Models without any are left out.

    Returns:
        The columns of `benchmarks.blind.equivalence.in_steps`.
    """
    rows = at_own_rate(frame)
    rows = rows[rows["judge"].isin(lengths["judge"])].assign(length=1.0)
    full_steps = lengths["judge"].map({name: work.steps for name, work in TASKS.items()})
    runs = pd.concat([rows, lengths.assign(length=lengths["steps"] / full_steps)])
    return in_steps(runs.assign(factor=1.0))


def parameters(frame: pd.DataFrame) -> dict[str, float]:
    """Number of parameters of each model, from Adam's 8 bytes for each in 32 bits."""
    sizes = frame[frame["quantizer"] == FULL].groupby("judge")["state_mib"].first()
    return {str(model): mib * 2**20 / 8 for model, mib in sizes.items()}
