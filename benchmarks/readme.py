"""The measured tables of README.md, made from the committed results.

``python -m benchmarks.readme`` replaces what stands between ``<!-- table: NAME -->`` and
``<!-- end of table -->`` in README.md; a test fails where the file is not up to date.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import pandas as pd

from benchmarks.judges import minus_full
from benchmarks.markdown import markdown
from qmaps.optim.presets import pair_of
from qmaps.storage.files import write_text

ROOT = Path(__file__).parents[1]
REPORTS = ROOT / "reports"
FUSED = "torch fused"
WORKLOAD = "gpt2-4-layers"
SHOWN = ("8bit", "4bit", "3bit", "2bit", "paper-8bit", "paper-4bit")
"""Presets of the table of losses, largest states first."""


def speed() -> list[str]:
    """Rows of reports/bench/training.json: one training step with each optimizer."""
    result = json.loads((REPORTS / "bench" / "training.json").read_text())["workloads"][WORKLOAD]
    seconds = {name: median(times) for name, times in result["seconds"].items()}
    optimizer = {name: median(times) for name, times in result["optimizer"].items()}
    return markdown(
        ("AdamW", "optimizer step", "whole training step", "peak memory"),
        [
            (
                name,
                f"{optimizer[name] / optimizer[FUSED]:.1f}",
                f"{seconds[name] / seconds[FUSED]:.2f}",
                f"{result['memory'][name]['peak']:.0f} MiB",
            )
            for name in sorted(seconds, key=seconds.__getitem__)
        ],
    )


def losses() -> pd.DataFrame:
    """Final loss of each preset minus that of 32 bits, per model.

    Returns:
        `preset`, `judge`, `seeds`, `difference`, `low` and `high` (95 % confidence interval).
    """
    judged = pd.read_csv(REPORTS / "judges.csv")
    more = pd.read_csv(REPORTS / "two-bits.csv")
    rows = pd.concat([judged, more[more["beta"] == 0.9]])
    presets = {pair_of(name).spec: name for name in SHOWN}
    rows = rows[rows["quantizer"].isin(presets)].assign(
        preset=lambda frame: frame["quantizer"].map(presets)
    )
    rows = rows.drop_duplicates(["judge", "preset", "seed"])
    return minus_full(rows, judged, ["preset"])


def safety() -> list[str]:
    """Rows of reports/judges.csv and reports/two-bits.csv: presets by model."""
    frame = losses()
    judges = list(dict.fromkeys(frame["judge"]))
    cells = {
        (row.preset, row.judge): f"{row.difference:+.4f} ± {row.high - row.difference:.4f}"
        for row in frame.itertuples()
    }
    presets = [name for name in SHOWN if any((name, judge) in cells for judge in judges)]
    return markdown(
        ("preset", *judges),
        [(f"`{name}`", *(cells.get((name, judge), "") for judge in judges)) for name in presets],
    )


TABLES = {"speed": speed, "safety": safety}


def updated(text: str) -> str:
    """`text` with each table made anew."""
    for name, rows in TABLES.items():
        text = replaced(text, name, rows())
    return text


def replaced(text: str, name: str, rows: Sequence[str]) -> str:
    """`text` with the lines of one table between its marks."""
    pattern = re.compile(f"(<!-- table: {name} -->\n).*?(?=<!-- end of table -->)", re.DOTALL)
    text, count = pattern.subn(lambda mark: mark[1] + "\n".join(rows) + "\n", text)
    if count != 1:
        raise ValueError(f"README.md must have one table {name!r}, got {count}")
    return text


def main() -> int:
    """Write the tables into README.md."""
    path = ROOT / "README.md"
    write_text(path, updated(path.read_text(encoding="utf-8")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
