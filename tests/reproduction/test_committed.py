"""Tables that other commands made, of today's version and of earlier ones."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from reproduction import committed
from reproduction.context import Context


def parity(folder: Path, losses: dict[str, float]) -> dict[str, float]:
    """The losses that exhibits see, by width, from a table with these."""
    rows = [
        {"workload": "digits", "optimizer": "AdamW", "width": width, "seed": seed, "loss": loss,
         "state_mib": 1.0}
        for width, loss in losses.items() for seed in range(2)
    ]  # fmt: skip
    for name in ("parity", "parity-adamw", "parity-stdlib-lm"):
        pd.DataFrame(rows).to_csv(folder / f"{name}.csv", index=False)
    found = committed.parity(Context(folder, reports=folder))
    return {str(width): float(loss) for width, loss in found.set_index("width")["loss"].items()}


def test_the_papers_pair_is_found_in_tables_of_every_version(tmp_path: Path) -> None:
    """Until version 0.2 it was the preset 4bit."""
    assert parity(tmp_path, {"32bit": 1.0, "4bit": 3.0}) == {"32bit": 1.0, "paper-4bit": 3.0}
    today = {"32bit": 1.0, "4bit": 2.0, "paper-4bit": 3.0}
    assert parity(tmp_path, today) == today


def test_reports_have_rows_of_the_papers_pair(tmp_path: Path) -> None:
    reports = Path(__file__).parents[2] / "reports"
    widths = set(committed.parity(Context(tmp_path, reports=reports))["width"])
    assert {"32bit", "8bit", "paper-4bit"} <= widths
