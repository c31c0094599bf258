"""Inputs other than the papers': models, data, rates, steps, seeds, hardware."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from reproduction import tasks, workloads
from reproduction.context import FULL

DEVIATIONS = Path(__file__).with_suffix(".csv")


def deviations(paper: str) -> pd.DataFrame:
    """The deviations with effects on the results, in the order of the page.

    Steps, rates and sizes of our workloads are filled in from the workloads themselves: ``w`` in
    the file has those of the laboratory by name, ``j`` those of `reproduction.tasks`, ``full`` the
    pages' size.

    Args:
        paper: name of the paper's folder.

    Returns:
        `where` (labels of figures and tables), `input`, `paper` and `ours` (the input's values).
    """
    rows = pd.read_csv(DEVIATIONS)
    rows = rows[rows["name"] == paper].drop(columns="name").reset_index(drop=True)
    variables = {
        "w": {name: workloads.get(name) for name in workloads.names()},
        "j": tasks.TASKS,
        "full": FULL,
    }
    return rows.assign(
        **{side: [text.format(**variables) for text in rows[side]] for side in ("paper", "ours")}
    )
