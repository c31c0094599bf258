"""Presets of version 0.3 on five models: the differences of the committed rows in steps.

The study is closed; reports/judges.md names the commit with its command.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from benchmarks.blind.equivalence import in_steps
from benchmarks.trials import FULL
from reproduction.judges import JUDGES

REPORTS = Path(__file__).parents[1] / "reports"
JUDGED, LENGTHS = REPORTS / "judges.csv", REPORTS / "judges-lengths.csv"
"""Rows of the study, and those of 32 bits for fewer and for more steps."""


def at_own_rate(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of `run_all` at the tuned learning rate of each model."""
    return frame[[row.lr == JUDGES[row.judge].lr for row in frame.itertuples()]]


def slower(frame: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Differences to 32 bits at the judge's own rate, in steps.

    Args:
        frame: rows of `run_all` of `trials`.
        others: rows of `run_all` of `lengths`. Judges without any are left out.

    Returns:
        The columns of `benchmarks.blind.equivalence.in_steps`.
    """
    own = at_own_rate(frame)
    own = own[own["judge"].isin(others["judge"])].assign(length=1.0)
    whole = others["judge"].map({name: work.steps for name, work in JUDGES.items()})
    both = pd.concat([own, others.assign(length=others["steps"] / whole)])
    return in_steps(both.assign(factor=1.0))


def parameters(frame: pd.DataFrame) -> dict[str, float]:
    """Number of parameters of each model, from Adam's 8 bytes for each in 32 bits."""
    sizes = frame[frame["quantizer"] == FULL].groupby("judge")["state_mib"].first()
    return {str(judge): mib * 2**20 / 8 for judge, mib in sizes.items()}
