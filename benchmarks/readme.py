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

import numpy as np
import pandas as pd

from benchmarks.blind.equivalence import WITHIN, percent
from benchmarks.blind.judges import JUDGES
from benchmarks.blind.report import nats, tuned_losses
from benchmarks.judges import parameters
from benchmarks.markdown import markdown
from benchmarks.trials import FULL
from benchmarks.version_0_3 import PAIR_OF
from qmaps.storage.files import records, write_text

ROOT = Path(__file__).parents[1]
REPORTS = ROOT / "reports"
FUSED = "torch fused"
WORKLOAD = "gpt2-4-layers"
SHOWN = ("8bit", "4bit", "3bit", "2bit", "paper-8bit", "paper-4bit")
"""Presets of the table of safety."""
KINDS = {
    "digits": "convolutional net, random weights",
    "lm-tiny": "language model, random weights",
    "stdlib-lm": "language model, random weights",
    "docstring-lm": "language model, trained weights",
    "minilm": "sentence encoder, trained weights",
    "microbiome": "causal GPT-2, trained weights",
    "pitch": "convolutional net, trained weights",
    "lora": "adapters (LoRA) of an encoder",
    "voice": "recurrent net, trained weights",
}


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


def safety() -> list[str]:
    """Models of reports/blind by presets, in per cent of steps or nats."""
    trials = pd.read_csv(REPORTS / "blind" / "trials.csv")
    steps = pd.read_csv(REPORTS / "blind" / "steps.csv").query("factor == 1")
    rows = {(row["judge"], row["quantizer"]): row for row in records(steps)}
    losses, sizes = tuned_losses(trials), parameters(trials)

    def cell(judge: str, preset: str) -> str:
        quantizer = PAIR_OF[preset]
        row = rows.get((judge, quantizer))
        if row is None:
            return "not trained"
        if np.isnan(row["steps"]):
            return f"{nats(losses, judge, quantizer, FULL)} nats"
        mark = " =" if row["outcome"] == "equivalent" else ""
        return f"**{percent(row)}{mark}**" if row["outcome"] in WITHIN else percent(row)

    return markdown(
        ("model", "parameters", "steps", *(f"`{name}`" for name in SHOWN)),
        [
            (
                f"{kind} (`{judge}`)",
                f"{sizes[judge] / 1e6:.2g} M",
                str(JUDGES[judge].steps),
                *(cell(judge, preset) for preset in SHOWN),
            )
            for judge, kind in KINDS.items()
        ],
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
