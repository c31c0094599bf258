"""Tables of the runs for the figures."""

from __future__ import annotations

import pandas as pd

from reproduction.context import Context
from reproduction.report_file import closed

WORKLOADS = {"digits": "lpmm", "stdlib-lm-tiny": "lpmm/stdlib-lm-tiny"}
"""Folder of each workload's tables."""
UNDERFLOW = "python -m benchmarks.lpmm.underflow"
DIGITS = closed(f"{UNDERFLOW} digits")
"""It makes the table of the bound too."""
COMMAND = closed(f"{UNDERFLOW} digits` and of `... stdlib-lm-tiny")

PRINTED = {"nearest": "deterministic"}
"""Roundings as the paper names them."""
LAYERS = {
    "0.weight": "convolution 1",
    "2.weight": "convolution 2",
    "6.weight": "linear 1",
    "8.weight": "linear 2",
}
"""The layers of `digits`; its parameters have numbers for names."""


def tables(context: Context, file: str) -> pd.DataFrame:
    """The tables of this name of every workload, with a column `workload`."""
    parts = [
        context.table(f"{folder}/{file}", closed(f"{UNDERFLOW} {name}")).assign(workload=name)
        for name, folder in WORKLOADS.items()
    ]
    return pd.concat(parts, ignore_index=True)
