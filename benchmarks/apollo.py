"""Adafactor8bit with APOLLO's projections, beside its factored second moments.

``python -m benchmarks.apollo`` trains a judge at several learning rates with each, then with more
seeds at the rate that is best for each. Controls ask where APOLLO's difference comes from. It
goes on where it was stopped, and writes reports/apollo.{csv,md}.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
from torch import nn

from benchmarks.command import command_line, one_line_errors, trial_options
from benchmarks.markdown import markdown
from benchmarks.muon import best
from benchmarks.paired import paired
from benchmarks.trials import Trial, run_all
from qmaps.lab.workloads import Workload
from qmaps.optim import Adafactor8bit
from qmaps.storage.files import output_folder, replacing
from reproduction.judges import JUDGES
from reproduction.report_file import write_report

JUDGE = "docstring-lm"
FACTORED, APOLLO = "factored", "APOLLO"
FULL_RANK, BLOCKS = "APOLLO, full rank", "APOLLO, blocks only"
BOTH = "APOLLO, full rank, blocks only"
RANK, WIDTH = 16, 64
"""A quarter of the judge's width, and the width."""
OPTIONS: dict[str, dict[str, Any]] = {
    FACTORED: {},
    APOLLO: {"apollo_rank": RANK},
    FULL_RANK: {"apollo_rank": WIDTH},
    BLOCKS: {"apollo_rank": RANK, "only": "blocks."},
    BOTH: {"apollo_rank": WIDTH, "only": "blocks."},
}
"""Options of `Adafactor8bit`, by the names of tables; those of the parameters whose names begin
with `only`, where it is given."""
CONTROLS = (FULL_RANK, BLOCKS, BOTH)
"""Of the full rank, where the embeddings and the output layer have no projection, and both."""
RATES = (0.03, 0.06, 0.12, 0.24)
SWEPT, SEEDS = 2, 8
"""Seeds of the sweep, and of the contest."""


@dataclass(frozen=True)
class ApolloTrial(Trial):
    """A trial of `Adafactor8bit`; `quantizer` names its options."""

    @property
    def key(self) -> str:
        """A hash of all that decides the result."""
        told = f"{super().key} {sorted(OPTIONS[self.quantizer].items())}"
        return hashlib.sha256(told.encode()).hexdigest()[:24]

    def optimizer(self, model: nn.Module, workload: Workload) -> torch.optim.Optimizer:
        """As on the project's page: its own schedule is off, and beta2 does not change."""
        options = dict(OPTIONS[self.quantizer])
        only = options.pop("only", "")
        named = list(model.named_parameters())
        groups = [
            {"params": [param for name, param in named if name.startswith(only)], **options},
            {"params": [param for name, param in named if not name.startswith(only)]},
        ]
        return Adafactor8bit(
            [group for group in groups if group["params"]],
            lr=workload.lr,
            beta2=0.999,
            relative_step=False,
            weight_decay=workload.weight_decay,
        )


def trials(name: str, rates: Sequence[float], seeds: int) -> list[ApolloTrial]:
    """One for each rate and seed."""
    work = JUDGES[JUDGE]
    return [
        ApolloTrial(JUDGE, replace(work, lr=rate), name, seed)
        for rate in rates
        for seed in range(seeds)
    ]


def difference(frame: pd.DataFrame, name: str = APOLLO) -> dict[str, float]:
    """APOLLO's final losses minus those of the factored optimizer, seed by seed.

    Args:
        frame: rows of the contest.
        name: of `OPTIONS`: APOLLO, or one of its `CONTROLS`.

    Returns:
        `seeds`; `factored` and `apollo`, the mean losses; `difference`, `low` and `high`: its mean
        and the ends of its 95 % confidence interval by a t-test.
    """
    losses = frame.pivot_table(values="loss", index="seed", columns="quantizer")
    return {
        **paired(losses[name], losses[FACTORED]),
        "factored": float(losses[FACTORED].mean()),
        "apollo": float(losses[name].mean()),
    }


def page(frame: pd.DataFrame, command: str) -> str:
    """The report."""
    contest = frame[frame["part"] == "contest"]
    lines = [
        "# APOLLO's projections",
        "",
        f"`{command}`",
        "",
        f"torch {torch.__version__}, one thread for each run. `Adafactor8bit` on the judge "
        f"{JUDGE}, {contest['steps'].iloc[0]:.0f} steps, with a fixed beta2 of 0.999: second "
        "moments as "
        f"means of rows and columns (factored), or of gradients projected to rank {RANK} with "
        "Fira's limiter (APOLLO). Final validation losses, each at its own best rate of a sweep "
        "inside which it lies.",
        "",
    ]
    states = contest.groupby("quantizer")["state_mib"].mean()
    rates = contest.groupby("quantizer")["lr"].first()
    lines += markdown(
        ("second moments", "learning rate", "loss", "states, MiB"),
        [
            (name, f"{rates[name]:g}", f"{loss:.4f}", f"{states[name]:.3f}")
            for name, loss in contest.groupby("quantizer", sort=False)["loss"].mean().items()
        ],
    )
    lines += ["", *(_minus(contest, name) for name in (APOLLO, *CONTROLS)), ""]
    lines += [
        f"The controls project to rank {WIDTH}, the width, which loses no direction; or only the "
        "matrices of the blocks, so that the embeddings and the output layer keep factored second "
        "moments; or both.",
        "",
        "## Learning rates",
        "",
    ]
    swept = frame[frame["part"] == "sweep"].groupby(["quantizer", "lr"], sort=False)["loss"]
    lines += markdown(
        ("second moments", "learning rate", "seeds", "loss"),
        [
            (name, f"{rate:g}", str(len(losses)), f"{losses.mean():.4f}")
            for (name, rate), losses in swept
        ],
    )
    return "\n".join(lines) + "\n"


def _minus(contest: pd.DataFrame, name: str) -> str:
    """An item: how far one ends behind the factored optimizer."""
    minus = difference(contest, name)
    return (
        f"- {name} minus factored, seed by seed ({minus['seeds']:.0f} seeds): "
        f"{minus['difference']:+.4f}, 95 % from {minus['low']:+.4f} to {minus['high']:+.4f}."
    )


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.apollo", description=__doc__)
    trial_options(parser)
    options = parser.parse_args(argv)
    out, trials_folder, workers = (
        output_folder(options.out),
        options.runs / "trials",
        options.workers or 0,
    )
    parts = []
    for name in OPTIONS:
        swept = run_all(trials(name, RATES, SWEPT), trials_folder, workers=workers)
        contest = run_all(trials(name, [best(swept, "lr")], SEEDS), trials_folder, workers=workers)
        parts += [swept.assign(part="sweep"), contest.assign(part="contest")]
    frame = pd.concat(parts, ignore_index=True)
    with replacing(out / "apollo.csv") as temporary:
        frame.to_csv(temporary, index=False)
    write_report(out / "apollo.md", page(frame, command_line("benchmarks.apollo", argv)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
