"""Adam's moments after 1.6 million steps: those of Resemblyzer's speaker encoder.

``python -m benchmarks.long_trained`` reads the checkpoint inside the package, and writes
reports/long-trained.md, the rows of its tables as long-trained.csv, and two figures: the use and
error of pairs of codes, and the second moment of the widest range on its way through quantizers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch
from torch import nn

import qmaps
from benchmarks.blind.plan import PAIRS
from benchmarks.blind.workloads.packages import package_file
from benchmarks.command import command_line, one_line_errors
from benchmarks.markdown import markdown
from benchmarks.version_0_3 import PRESETS
from qmaps import analyze, capture, figures, sweep
from qmaps.capture import CapturedStates
from qmaps.storage.files import output_folder, records, replacing
from reproduction.report_file import write_report

PACKAGE, CHECKPOINT = "resemblyzer", "pretrained.pt"
BLIND = Path(__file__).parents[1] / "reports" / "blind" / "verdicts.csv"
DRAWN = ("B2048/DE@8s + B2048/DE@8u", "B256/DE@8s + B256/DE-0@8u", "B128/DE@4s + rank1/linear@4u")
"""Pairs whose codes are drawn."""
SECONDS = ("B128/DE@4u", "rank1/linear@4u", "B128/DE-0@4u")
"""Quantizers of the second moment in the histogram."""
SMALLEST_NORMAL = torch.finfo(torch.float32).tiny


class Encoder(nn.Module):
    """The shapes of the speaker encoder, by which its states get names."""

    def __init__(self) -> None:
        super().__init__()
        self.similarity_weight = nn.Parameter(torch.empty(1))
        self.similarity_bias = nn.Parameter(torch.empty(1))
        self.lstm = nn.LSTM(40, 256, 3)
        self.linear = nn.Linear(256, 256)


def ranges(states: CapturedStates) -> pd.DataFrame:
    """Sizes of the roots of second moments, a row per matrix.

    Returns:
        `parameter`; `smallest`, `median` and `largest` root; and `subnormal`, the share of second
        moments below float32's smallest normal number.
    """
    rows = []
    for name, _, v, _ in states.adam_pairs():
        if v.dim() == 2:
            root = v.double().sqrt()
            subnormal = float((v < SMALLEST_NORMAL).double().mean())
            ends = float(root.min()), float(root.median()), float(root.max())
            rows.append((name, *ends, subnormal))
    return pd.DataFrame(rows, columns=["parameter", "smallest", "median", "largest", "subnormal"])


def widest_of(by_matrix: pd.DataFrame) -> pd.Series:
    """The row of `ranges` whose largest root is the most times its smallest."""
    return by_matrix.loc[(by_matrix["largest"] / by_matrix["smallest"]).idxmax()]


def judged(states: CapturedStates) -> pd.DataFrame:
    """Verdicts from the checkpoint alone, and errors of a single update, a row per pair."""
    pairs = qmaps.recommend(states, candidates=PAIRS).pairs
    errors = sweep.summarize(sweep.run(states, PAIRS)).set_index("quantizer")["mean_abs_error"]
    columns = [
        "quantizer",
        "preset",
        "bits_per_element",
        "verdict",
        "step_cost",
        "zero_point_share",
    ]
    one_step = [errors[spec] for spec in pairs["quantizer"]]
    return pairs[columns].assign(one_step=one_step).sort_values("one_step", ignore_index=True)


def beside_young(pairs: pd.DataFrame) -> dict[str, float]:
    """Rank correlation of one-step errors with those of each short training of the blind test."""
    told = pd.read_csv(BLIND).query("mode == 'gradients'")
    errors = pairs.set_index("quantizer")["one_step"]
    return {
        judge: float(errors.corr(own.set_index("quantizer")["one_step"], method="spearman"))
        for judge, own in told.groupby("judge", sort=False)
    }


def page(by_matrix: pd.DataFrame, pairs: pd.DataFrame, command: str) -> str:
    """The report."""
    widest = widest_of(by_matrix)
    zeroed = pairs[pairs["zero_point_share"] > 0]
    names = {spec: f"`{name}`: " for spec, name in PRESETS.items()}
    agreement = ", ".join(
        f"{value:.2f} (`{judge}`)" for judge, value in beside_young(pairs).items()
    )
    lines = [
        "# States of a long training",
        "",
        f"`{command}` writes this page and its figures. The package Resemblyzer (Apache 2.0) has "
        "weights with the Adam moments of their training: a speaker encoder of three LSTM layers "
        "and a linear one, 1.4 million parameters, after 1,564,500 steps at betas of 0.9 and "
        "0.999. These are the only states of a long training here.",
        "",
        f"- The roots of second moments reach from {widest['smallest']:.0e} to "
        f"{widest['largest']:.0e} within one matrix, `{widest['parameter']}`.",
        f"- {len(zeroed)} of {len(pairs)} pairs decode second moments to 0 where the first moment "
        "is not: "
        + "; ".join(
            f"`{row['quantizer']}` for {row['zero_point_share']:.2%} of elements"
            for row in records(zeroed)
        )
        + ".",
        "- The pairs' errors of one update have a rank correlation with those of states after 60 "
        f"steps of {agreement}.",
        "",
        "## Second moments",
        "",
        *markdown(
            ("matrix", "smallest root", "median", "largest", "subnormal second moments"),
            [
                (
                    f"`{row['parameter']}`",
                    *(f"{row[name]:.1e}" for name in ("smallest", "median", "largest")),
                    f"{row['subnormal']:.2%}",
                )
                for row in records(by_matrix)
            ],
        ),
        "",
        "Subnormal ones belong to units of the last layer that no gradient reached any more: their "
        "moments decayed until float32 ended.",
        "",
        "## Pairs",
        "",
        "Errors of one update are in learning rates. Verdicts and step costs are those of "
        "`recommend` from the checkpoint alone, so gradients are simulated and none can be `safe`.",
        "",
        *markdown(
            ("pair", "bits", "mean error of one update", "zero points", "step cost", "verdict"),
            [
                (
                    f"{names.get(row['quantizer'], '')}`{row['quantizer']}`",
                    f"{row['bits_per_element']:.2f}",
                    f"{row['one_step']:.3g}",
                    f"{row['zero_point_share']:.2%}",
                    f"{row['step_cost']:.2g}",
                    row["verdict"],
                )
                for row in records(pairs)
            ],
        ),
        "",
        "![Use, absolute and relative error of the update over pairs of codes](long-trained.png)",
        "",
        "Use and error over pairs of codes, as in Figure 4 of the 8-bit paper: `paper-8bit`, "
        "`8bit`, `paper-4bit`. Grey: never used.",
        "",
        f"![Second moments of {widest['parameter']}](long-trained-second.png)",
        "",
        f"The second moment of `{widest['parameter']}` on its way through quantizers, as in "
        "Figures 20 to 31 of the 4-bit paper.",
        "",
    ]
    return "\n".join(lines)


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("reports"))
    out = output_folder(parser.parse_args(argv).out)
    states = capture.load(package_file(PACKAGE, CHECKPOINT), names=Encoder())
    by_matrix, pairs = ranges(states), judged(states)
    figures.save(figures.code_pairs(analyze.code_pairs(states, DRAWN)), out / "long-trained.png")
    widest = states.tensor(widest_of(by_matrix)["parameter"], "exp_avg_sq")
    second = analyze.histogram(widest, SECONDS)
    figures.save(figures.histogram(second), out / "long-trained-second.png")
    with replacing(out / "long-trained.csv") as file:
        pairs.to_csv(file, index=False)
    command = command_line("benchmarks.long_trained", argv)
    write_report(out / "long-trained.md", page(by_matrix, pairs, command))
    return 0


if __name__ == "__main__":
    sys.exit(main())
