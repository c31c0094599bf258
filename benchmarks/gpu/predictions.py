"""Predictions of ``python -m benchmarks.gpu.sass`` for a device."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from reproduction.report_file import ROOT

SLOWER = re.compile("pcie|nvl|laptop", re.IGNORECASE)
"""Cards of the same name with other clocks and memory."""
FILE = ROOT / "reports" / "gpu" / "sass.csv"


def predictions(device: str, file: Path = FILE) -> dict[str, str]:
    """Milliseconds per billion parameters by case of the model, and their GPU.

    Args:
        device: its name in torch.
        file: rows of `case`, `gpu` and `ms_per_billion`; without it there are no predictions.
    """
    if not file.exists():
        return {}
    with file.open(newline="", encoding="utf-8") as lines:
        return {
            row["case"]: f"{row['ms_per_billion']} ({row['gpu']})"
            for row in csv.DictReader(lines)
            # "H100 SXM" is for "NVIDIA H100 80GB HBM3".
            if re.findall(r"\w*\d\w*", row["gpu"])[0] in re.split(r"\W", device)
            and not SLOWER.search(device)
        }
