"""Training with the published formats of optimizer states that docs/formats.md lists.

``python -m benchmarks.formats`` trains each judge with AdamW and the pair of every row of the page.
It goes on where it was stopped, and writes reports/formats.{csv,md}.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch
from torch import nn

from benchmarks.command import among, command_line, one_line_errors, trial_options
from benchmarks.markdown import markdown
from benchmarks.paired import paired
from benchmarks.trials import FULL, Trial, run_all
from qmaps import sweep
from qmaps.algebra.pair import Pair
from qmaps.capture import StateRecorder
from qmaps.lab.compare import Contender
from qmaps.lab.workloads import train
from qmaps.storage.files import output_folder, replacing
from reproduction.judges import JUDGES
from reproduction.report_file import write_report

PAGE = Path(__file__).parents[1] / "docs" / "formats.md"
SEEDS = 8
LOST = 1.0  # nats above 32 bits from which on a run counts as lost
DEFAULT = ("docstring-lm", "lm-tiny")
PRESETS = {
    "preset `8bit`": "B256/DE@8s + B256/DE-0@8u",
    "preset `4bit`": "B128/DE@4s+sr + B128/DE-0@4u",
}
# The formats whose second moment becomes zero, with a map that has no zero for it.
WITHOUT_ZERO = {
    "AdamW in e4m3, second moment without zero": "B256/e4m3@8s + B256/DE-0@8u",
    "Adam in MXFP6, second moment without zero": "B32xe8m0/e2m3@6s + B32xe8m0/DE-0@6u",
    "Adam in MXFP4, second moment without zero": "B32xe8m0/e2m1@4s+sr + B32xe8m0/DE-0@4u",
    "Adam in NVFP4, second moment without zero": "B16xe4m3/e2m1@4s+sr + B16xe4m3/DE-0@4u",
}

# Evenly spaced codes, rounded in several ways.
ROUNDINGS = {
    "linear in 4 bits, to nearest": "B128/linear@4s + B128/linear@4u",
    "linear in 4 bits, stochastic": "B128/linear@4s+sr + B128/linear@4u+sr",
    "linear in 4 bits, first moment stochastic": "B128/linear@4s+sr + B128/linear@4u",
    "linear in 8 bits, to nearest": "B128/linear@8s + B128/linear@8u",
}


def formats() -> dict[str, str]:
    """The pairs of the page by method, the presets, maps without zero, and other roundings."""
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| `([^`]+ \+ [^`]+)` \|", text, re.M)
    return {**dict(rows), **PRESETS, **WITHOUT_ZERO, **ROUNDINGS}


def trials(judge: str) -> list[Trial]:
    """Trials on a judge."""
    pairs = [FULL, *dict.fromkeys(formats().values())]
    return [Trial(judge, JUDGES[judge], pair, seed) for seed in range(SEEDS) for pair in pairs]


def record(judge: str, states: Path) -> int:
    """Record 32-bit AdamW (seed 0) after half of a judge's steps, and return their number."""
    workload = JUDGES[judge]
    half = workload.steps // 2

    def recorder(optimizer: torch.optim.Optimizer, _: nn.Module) -> StateRecorder:
        return StateRecorder(optimizer, states, steps=[half])

    with tempfile.TemporaryDirectory() as folder:
        full = Contender(FULL, None)
        train(workload, full.optimizer, out=Path(folder) / "run", steps=half, hooks=[recorder])
    return half


def one_step(judge: str) -> dict[str, float]:
    """Mean absolute error of Adam's update after one quantization of recorded states, by pair."""
    with tempfile.TemporaryDirectory() as folder:
        states = Path(folder) / "states"
        record(judge, states)
        errors = sweep.summarize(sweep.run(states, dict.fromkeys(formats().values())))
    return dict(zip(errors["quantizer"], errors["mean_abs_error"], strict=True))


def differences(frame: pd.DataFrame) -> pd.DataFrame:
    """Final losses minus that of 32 bits with the same seed.

    Args:
        frame: rows of `run_all`.

    Returns:
        `judge`, `method`, `quantizer`, `seeds`, `lost` (seeds that ended more than 1 nat above 32
        bits, or not finite), `difference` (mean of the finite ones), `low` and `high` (its 95 %
        confidence interval).
    """
    table = frame.pivot_table("loss", ["judge", "seed"], "quantizer", sort=False)
    records = []
    for judge, losses in table.groupby(level="judge", sort=False):
        for method, pair in formats().items():
            every = losses[pair] - losses[FULL]
            lost = int((~(every <= LOST)).sum())
            difference = {**paired(losses[pair], losses[FULL]), "seeds": len(every), "lost": lost}
            records.append({"judge": judge, "method": method, "quantizer": pair, **difference})
    return pd.DataFrame(records)


def page(compared: pd.DataFrame, command: str) -> str:
    """The report on rows of `differences` with the column `one_step`."""
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
        "them. A run that ends more than 1 nat above 32 bits is lost; where one is, no mean is "
        "given. The one-step error is the mean absolute error of Adam's update, whose elements "
        "are mostly below 1, after one quantization of 32-bit AdamW's states at half of the steps.",
        "",
    ]
    for judge, rows in compared.groupby("judge", sort=False):
        lines += [f"## {judge}", ""]
        lines += markdown(
            ("method", "pair", "one-step error", "minus 32 bits", "95 %", "lost"),
            [
                (
                    row.method,
                    f"`{Pair.parse(row.quantizer)}`",
                    f"{row.one_step:.3g}",
                    "" if row.lost else f"{row.difference:+.4f}",
                    "" if row.lost else f"{row.low:+.4f} to {row.high:+.4f}",
                    f"{row.lost} of {row.seeds}",
                )
                for row in rows.sort_values(["lost", "difference"]).itertuples()
            ],
        )
        lines += [""]
    return "\n".join(lines)


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.formats", description=__doc__)
    parser.add_argument("judge", nargs="*", default=list(DEFAULT), metavar="JUDGE",
                        help=f"any of {', '.join(JUDGES)} (default: small LMs)")  # fmt: skip
    trial_options(parser)
    options = parser.parse_args(argv)
    among(parser, "judge", options.judge, list(JUDGES))
    out = output_folder(options.out)
    due = [trial for judge in options.judge for trial in trials(judge)]
    frame = run_all(due, options.runs / "trials", workers=options.workers or 0)
    compared = differences(frame)
    errors = {judge: one_step(judge) for judge in options.judge}
    compared["one_step"] = [
        errors[row.judge][str(Pair.parse(row.quantizer))] for row in compared.itertuples()
    ]
    with replacing(out / "formats.csv") as temporary:
        frame.to_csv(temporary, index=False)
    write_report(out / "formats.md", page(compared, command_line("benchmarks.formats", argv)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
