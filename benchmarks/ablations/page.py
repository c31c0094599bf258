"""A study's summary as a page."""

from __future__ import annotations

import math

import pandas as pd
import torch

from benchmarks.ablations.study import WINDOW, WORKLOAD, Study, summary
from benchmarks.markdown import UNTUNED, markdown, verdicts
from reproduction.claim import rows as published

OURS = ("runs", "unstable", "loss", "minus baseline", "MiB")
EXPLAINED = (
    f"Workload `{WORKLOAD}`, final validation loss in nats per byte. A run is unstable if a loss "
    f"was NaN or infinite, or the median of {WINDOW} training losses in a row was above that of "
    "the first step. The loss is the median of the stable runs. The difference to the baseline, "
    "the same with 32 bits where the others have quantizers, is taken point by point, where both "
    "are stable, and its median given. " + UNTUNED.format("../judges.md")
)


def page(study: Study, frame: pd.DataFrame, command: str) -> str:
    """The page in Markdown."""
    rows = summary(study, frame)
    printed = {
        (row.what, row.quantity): str(row.paper)
        for row in published(*study.exhibit, ("what", "quantity", "paper")).itertuples()
    }
    head = (*study.columns, *OURS, "paper: unstable", f"paper: {study.metric}")
    cells = []
    for setting in study.settings:
        row = rows.loc[setting.name]
        name = setting.row or setting.name
        unstable = printed.get((name, "unstable runs"))
        cells.append(
            [
                *setting.parts,
                f"{row['runs']:.0f}",
                f"{row['unstable']:.0f} %",
                _number(row["loss"], ".4f"),
                _number(row["difference"], "+.4f"),
                f"{row['state_mib']:.3f}",
                f"{unstable} %" if unstable else "",
                printed.get((name, study.metric), ""),
            ]
        )
    lines = [
        f"# {study.title}",
        "",
        f"`{command}`",
        "",
        f"Beside: {study.source}. {EXPLAINED} torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads.",
        "",
        f"![Final losses]({study.name}.png)",
        "",
        *markdown(head, cells),
        "",
        "## What the paper says, and our runs",
        "",
        *verdicts(study.claims(rows)),
    ]
    return "\n".join(lines) + "\n"


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)
