"""Training with the published formats of optimizer states that docs/formats.md lists.

``python -m benchmarks.formats`` trains each judge with AdamW and the pair of every row of the page.
It goes on where it was stopped, and writes reports/formats.{csv,md}.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch
from scipy import stats

from benchmarks.command import among, command_line, count, one_line_errors
from benchmarks.markdown import markdown
from benchmarks.trials import FULL, Trial, run_all
from qmaps.algebra.pair import Pair
from qmaps.lab.judges import JUDGES
from qmaps.storage.files import output_folder, replacing, write_text

PAGE = Path(__file__).parents[1] / "docs" / "formats.md"
SEEDS = 8
DEFAULT = ("docstring-lm", "lm-tiny")
PRESETS = {
    "preset `8bit`": "B256/DE@8s + B256/DE-0@8u",
    "preset `4bit`": "B128/DE@4s+sr + B128/DE-0@4u",
}


def formats() -> dict[str, str]:
    """The pairs of the page by method, then the presets of 8 and 4 bits."""
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| `([^`]+ \+ [^`]+)` \|", text, re.M)
    return {**dict(rows), **PRESETS}


def trials(judge: str) -> list[Trial]:
    """What is trained on a judge."""
    pairs = [FULL, *dict.fromkeys(formats().values())]
    return [Trial(judge, JUDGES[judge], pair, seed) for seed in range(SEEDS) for pair in pairs]


def differences(frame: pd.DataFrame) -> pd.DataFrame:
    """Final losses minus that of 32 bits with the same seed.

    Args:
        frame: rows of `run_all`.

    Returns:
        `judge`, `method`, `quantizer`, `seeds` (those that ended with a finite loss), `difference`
        (mean), `low` and `high` (95 % confidence interval).
    """
    table = frame.pivot_table("loss", ["judge", "seed"], "quantizer", sort=False)
    records = []
    for judge, losses in table.groupby(level="judge", sort=False):
        for method, pair in formats().items():
            difference = (losses[pair] - losses[FULL]).dropna()
            n = len(difference)
            mean = difference.mean()
            wide = stats.t(n - 1).ppf(0.975) * difference.std() / n**0.5 if n > 1 else float("nan")
            records.append(
                {"judge": judge, "method": method, "quantizer": pair, "seeds": n,
                 "difference": mean, "low": mean - wide, "high": mean + wide}
            )  # fmt: skip
    return pd.DataFrame(records)


def page(frame: pd.DataFrame, command: str) -> str:
    """The report."""
    found = differences(frame)
    lines = [
        "# Published formats, trained",
        "",
        f"`{command}`",
        "",
        f"torch {torch.__version__}, one thread for each run. AdamW with each pair of "
        "[docs/formats.md](../docs/formats.md), at the learning rate that is best for 32 bits "
        "([judges.md](judges.md)). Differences of the final validation loss to 32 bits, in nats "
        "per byte, are taken seed by seed; 95 % is the confidence interval of a t-test. Only the "
        "formats are those of the methods: betas and schedules are not, where a method changes "
        "them.",
        "",
    ]
    for judge, rows in found.groupby("judge", sort=False):
        lines += [f"## {judge}", ""]
        lines += markdown(
            ("method", "pair", "minus 32 bits", "95 %", "seeds"),
            [
                (
                    row.method,
                    f"`{Pair.parse(row.quantizer)}`",
                    f"{row.difference:+.4f}",
                    f"{row.low:+.4f} to {row.high:+.4f}",
                    str(row.seeds),
                )
                for row in rows.sort_values("difference").itertuples()
            ],
        )
        lines += [""]
    return "\n".join(lines)


@one_line_errors
def main(given: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.formats", description=__doc__)
    parser.add_argument("judge", nargs="*", default=list(DEFAULT), metavar="JUDGE",
                        help=f"any of {', '.join(JUDGES)} (default: small LMs)")  # fmt: skip
    parser.add_argument("--workers", type=count, help="processes (default: one per core)")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where trials are kept")
    parser.add_argument("--out", type=Path, default=Path("reports"), help="the report's folder")
    options = parser.parse_args(given)
    among(parser, "judge", options.judge, list(JUDGES))
    out = output_folder(options.out)
    due = [trial for judge in options.judge for trial in trials(judge)]
    frame = run_all(due, options.runs / "trials", workers=options.workers or 0)
    with replacing(out / "formats.csv") as temporary:
        frame.to_csv(temporary, index=False)
    write_text(out / "formats.md", page(frame, command_line("benchmarks.formats", given)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
