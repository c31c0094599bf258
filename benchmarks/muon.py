"""Muon with its momentum in 32, 8 and 4 bits, beside AdamW.

``python -m benchmarks.muon`` trains each model with AdamW at several learning rates, then with
Muon for the hidden matrices and AdamW at its best rate for everything else, at several rates of
Muon. At the best rates it trains with quantized states. It goes on where it was stopped, and with
the rows of reports/muon.csv; it writes reports/muon.{csv,md}.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
from torch import nn

from benchmarks.command import among, command_line, one_line_errors, trial_options
from benchmarks.markdown import markdown
from benchmarks.paired import paired
from benchmarks.trials import FULL, Trial, restore, run_all, with_others
from qmaps.lab.workloads import Workload
from qmaps.optim import AdamW, Muon, muon_groups
from qmaps.storage.files import output_folder, replacing
from reproduction.judges import JUDGES
from reproduction.report_file import write_report

WORKLOADS: Mapping[str, Workload] = {
    "lm-tiny": JUDGES["lm-tiny"],
    "stdlib-lm": JUDGES["stdlib-lm"],
}


@dataclass(frozen=True)
class Sweep:
    """The learning rates that are tried, and with how many seeds.

    Attributes:
        factors: AdamW's rates, in units of the workload's own.
        rates: Muon's rates.
        seeds: number of seeds.
    """

    factors: tuple[float, ...]
    rates: tuple[float, ...]
    seeds: int


SWEEPS = {
    "lm-tiny": Sweep((0.25, 0.5, 1.0, 2.0, 4.0), (0.005, 0.01, 0.02, 0.04, 0.08), 3),
    "stdlib-lm": Sweep((0.5, 1.0, 2.0), (0.02, 0.04, 0.08), 2),
}
SEEDS = 8

ADAMW, ADAMW_8BIT = "AdamW", "AdamW8bit"
EIGHT = "B256/DE@8s + B256/DE-0@8u"
MUON = "Muon + AdamW"
WIDTHS = {
    MUON: (None, None),
    "Muon + AdamW8bit": (None, "8bit"),
    "Muon B256/DE@8s + AdamW": ("B256/DE@8s", None),
    "Muon B256/DE@8s + AdamW8bit": ("B256/DE@8s", "8bit"),
    "Muon B2048/linear0@8s + AdamW8bit": ("B2048/linear0@8s", "8bit"),
    "Muon B128/DE@4s + AdamW8bit": ("B128/DE@4s", "8bit"),
    "Muon B128/DE@4s+sr + AdamW8bit": ("B128/DE@4s+sr", "8bit"),
    "Muon lowrank4(B128/DE@8s)+B128/DE@4s + AdamW8bit": ("lowrank4(B128/DE@8s)+B128/DE@4s", "8bit"),
    "Muon rank1B128x128/linear@4s + AdamW8bit": ("rank1B128x128/linear@4s", "8bit"),
    "Muon GRASP + AdamW8bit": (
        "lowrank4(rank1B128x128/linear@8s)+rank1B128x128/linear@4s",
        "8bit",
    ),
    "Muon MuonQ + AdamW8bit": ("lowrank4(B128/mu-law@4s)+B128/mu-law@4s", "8bit"),
}
"""Quantizer of Muon's momentum and preset of AdamW's moments, by the names of the optimizers."""
CONTESTS = {
    "lm-tiny": (FULL, EIGHT, *WIDTHS),
    "stdlib-lm": (
        FULL,
        MUON,
        "Muon + AdamW8bit",
        "Muon B256/DE@8s + AdamW",
        "Muon B256/DE@8s + AdamW8bit",
        "Muon B2048/linear0@8s + AdamW8bit",
        "Muon B128/DE@4s + AdamW8bit",
    ),
}
"""Pairs of AdamW, or names in `WIDTHS`, that are compared at the best rates."""


class MuonAndAdamW(torch.optim.Optimizer):
    """Muon for the hidden matrices of a model and AdamW for its other parameters, as one."""

    def __init__(
        self, model: nn.Module, workload: Workload, rate: float, muon: str | None, adamw: str | None
    ) -> None:
        matrices, others = muon_groups(model, exclude=["head.*"])
        decay = workload.weight_decay
        self.both = (
            Muon(
                matrices,
                lr=rate,
                weight_decay=decay,
                state_quantizers={"momentum_buffer": muon},
            ),
            AdamW(
                others,
                lr=workload.lr,
                betas=workload.betas,
                eps=workload.eps,
                weight_decay=decay,
                state_quantizers=adamw,
            ),
        )
        super().__init__([group for one in self.both for group in one.param_groups], {})
        # The groups themselves, not copies, so that schedules reach both.
        self.param_groups = [group for one in self.both for group in one.param_groups]

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take a step of both."""
        assert closure is None
        for one in self.both:
            one.step()
        self.state = {**self.both[0].state, **self.both[1].state}  # type: ignore[assignment]


@dataclass(frozen=True)
class MuonTrial(Trial):
    """A trial with Muon for the hidden matrices.

    Attributes:
        rate: Muon's learning rate; that of the workload is AdamW's.
    """

    rate: float = 0.02

    @property
    def key(self) -> str:
        """A hash of all that decides the result."""
        return hashlib.sha256(f"{super().key} {self.rate}".encode()).hexdigest()[:24]

    def run(self) -> dict[str, Any]:
        """Train, and return the row."""
        return {**super().run(), "rate": self.rate}

    def optimizer(self, model: nn.Module, workload: Workload) -> torch.optim.Optimizer:
        """Muon and AdamW."""
        return MuonAndAdamW(model, workload, self.rate, *WIDTHS[self.quantizer])


def adamw_sweep(name: str) -> list[Trial]:
    """AdamW at rates around the workload's."""
    return [
        Trial(name, WORKLOADS[name], FULL, seed).at(factor)
        for factor in SWEEPS[name].factors
        for seed in range(SWEEPS[name].seeds)
    ]


def muon_sweep(name: str, lr: float) -> list[MuonTrial]:
    """Muon at several rates, with AdamW at its best."""
    work = replace(WORKLOADS[name], lr=lr)
    return [
        MuonTrial(name, work, MUON, seed, rate=rate)
        for rate in SWEEPS[name].rates
        for seed in range(SWEEPS[name].seeds)
    ]


def contest(name: str, lr: float, rate: float, seeds: int) -> list[Trial]:
    """The optimizers of a contest at the best rates."""
    work = replace(WORKLOADS[name], lr=lr)
    return [
        MuonTrial(name, work, label, seed, rate=rate)
        if label in WIDTHS
        else Trial(name, work, label, seed)
        for seed in range(seeds)
        for label in CONTESTS[name]
    ]


def best(frame: pd.DataFrame, rate: str) -> float:
    """The rate with the lowest mean loss; raises if it is the first or the last of the sweep."""
    means = frame.groupby(rate)["loss"].mean()
    found = float(means.idxmin())
    if found in (means.index.min(), means.index.max()):
        raise SystemExit(f"the best {rate}, {found:g}, is at the end of the sweep: widen it")
    return found


def differences(frame: pd.DataFrame) -> pd.DataFrame:
    """Losses with the same seed, compared.

    Args:
        frame: rows of `contest`.

    Returns:
        `workload`, `one`, `other`, `seeds`, `loss` (of `one`, mean), `difference` (mean), `low` and
        `high` (95 % confidence interval of the difference), and `state_mib` of `one`.
    """
    records = []
    for name, rows in frame.groupby("judge", sort=False):
        losses = rows.pivot_table("loss", "seed", "optimizer", sort=False)
        states = rows.groupby("optimizer")["state_mib"].mean()
        compared = [(ADAMW_8BIT, ADAMW), (MUON, ADAMW)]
        compared += [(label, MUON) for label in WIDTHS if label != MUON]
        for one, other in compared:
            if one not in losses:
                continue
            records.append(
                {"workload": name, "one": one, "other": other, "loss": losses[one].mean(),
                 **paired(losses[one], losses[other]), "state_mib": states[one]}
            )  # fmt: skip
    return pd.DataFrame(records)


def page(frame: pd.DataFrame, command: str) -> str:
    """The report."""
    lines = [
        "# Muon with quantized momentum",
        "",
        f"`{command}`",
        "",
        f"torch {torch.__version__}, one thread for each run. Muon steps the hidden matrices, and "
        "AdamW the embeddings, the head, norms and biases. AdamW's learning rate is the best of a "
        "sweep with AdamW alone, and Muon's the best of a sweep beside it; both lie inside their "
        "sweeps. Rows of models that the command does not name are those of an earlier call. "
        "The final validation losses are compared seed by seed; 95 % "
        "is the confidence interval of a t-test.",
        "",
    ]
    contested = frame[frame["part"] == "contest"]
    lines += markdown(
        ("model", "optimizer", "states, MiB", "loss", "minus", "difference", "95 %", "seeds"),
        [
            (
                row.workload,
                row.one,
                f"{row.state_mib:.2f}",
                f"{row.loss:.4f}",
                row.other,
                f"{row.difference:+.4f}",
                f"{row.low:+.4f} to {row.high:+.4f}" if row.seeds > 1 else "one seed",
                str(row.seeds),
            )
            for row in differences(contested).itertuples()
        ],
    )
    lines += ["", "## Learning rates", ""]
    for part, rate in (("AdamW", "lr"), ("Muon", "rate")):
        swept = frame[frame["part"] == part].groupby(["judge", rate], sort=False)["loss"]
        lines += [f"{part}:", ""]
        lines += markdown(
            ("model", "learning rate", "seeds", "loss"),
            [
                (name, f"{value:g}", str(len(losses)), f"{losses.mean():.4f}")
                for (name, value), losses in swept
            ],
        )
        lines += [""]
    return "\n".join(lines)


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.muon", description=__doc__)
    parser.add_argument("workload", nargs="*", default=list(WORKLOADS), metavar="WORKLOAD",
                        help=f"any of {', '.join(WORKLOADS)} (default: all)")  # fmt: skip
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"(default {SEEDS})")
    trial_options(parser)
    options = parser.parse_args(argv)
    among(parser, "workload", options.workload, list(WORKLOADS))
    out, trials_folder, workers = (
        output_folder(options.out),
        options.runs / "trials",
        options.workers or 0,
    )
    restore(out / "muon.csv", trials_folder)

    def trained(trials: Sequence[Trial], part: str) -> pd.DataFrame:
        keys = [trial.key for trial in trials]
        return run_all(trials, trials_folder, workers=workers).assign(part=part, key=keys)

    parts = []
    for name in options.workload:
        swept = trained(adamw_sweep(name), "AdamW")
        lr = best(swept, "lr")
        muon = trained(muon_sweep(name, lr), "Muon")
        due = contest(name, lr, best(muon, "rate"), options.seeds)
        parts += [swept, muon, trained(due, "contest")]
    frame = with_others(pd.concat(parts, ignore_index=True), out / "muon.csv")
    frame["optimizer"] = frame["quantizer"].map(lambda one: ADAMW_8BIT if one == EIGHT else one)
    frame.loc[frame["quantizer"] == FULL, "optimizer"] = ADAMW
    with replacing(out / "muon.csv") as temporary:
        frame.to_csv(temporary, index=False)
    write_report(out / "muon.md", page(frame, command_line("benchmarks.muon", argv)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
