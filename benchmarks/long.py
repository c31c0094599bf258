"""Roundings of both moments over 10,000 steps: which of them costs what.

``python -m benchmarks.long train`` trains the arms of `ARMS` and keeps a row of each run in
reports/long/trials.csv; ``report`` writes reports/long/README.md from them. ``train`` goes on where
it was stopped; ``--seeds``, ``--rates`` and ``--minutes`` take a part of the plan. The plan, written
before the runs, is reports/long/preregistration.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import torch
from torch import nn

from benchmarks.command import command_line, count, one_line_errors
from benchmarks.long_run import JUDGE, TUNING, tuned
from benchmarks.markdown import markdown
from benchmarks.paired import paired
from benchmarks.trials import FULL, Trial, restore, run_all
from qmaps.lab.workloads import Workload
from qmaps.storage.files import output_folder, records, replacing
from reproduction.report_file import write_report

CONTROL = "32-bit, nudged"
FIRST_4, FIRST_3 = "B128/DE-sym@4s", "B128/DE-sym@3s"
SECOND_4, SECOND_3 = "B128/DE-0@4u", "B128/DE-0@3u"
LOG = "logB256/log2-0(in_log=true)"
ARMS = {
    "32 bits": FULL,
    "32 bits, nudged": CONTROL,
    "8bit": "B256/DE-sym@8s + B256/DE-0@8u",
    "8bit, v +sr": "B256/DE-sym@8s + B256/DE-0@8u+sr",
    "4bit": f"{FIRST_4}+sr + {SECOND_4}",
    "4bit, exchanged": f"{FIRST_4} + {SECOND_4}+sr",
    "4bit, v in log +sr": f"{FIRST_4} + {LOG}@4u+sr",
    "m in 4 bits +sr alone": f"{FIRST_4}+sr + 32-bit",
    "m in 4 bits alone": f"{FIRST_4} + 32-bit",
    "v in 4 bits alone": f"32-bit + {SECOND_4}",
    "v in 4 bits +sr alone": f"32-bit + {SECOND_4}+sr",
    "3bit": f"{FIRST_3}+sr + {SECOND_3}",
    "3bit, exchanged": f"{FIRST_3} + {SECOND_3}+sr",
    "3bit, v in log +sr": f"{FIRST_3}+sr + {LOG}@3u+sr",
}
"""Quantizers of Adam's moments by arm. The first two are one optimizer: their difference is the
noise that any change of a rounding makes."""
RATES = (0.012, 0.003)
"""The best learning rate of 32 bits, and a quarter of it."""
SEEDS = 24
FAILED = 0.1
"""Nats above the median of 32 bits at which a run counts as failed."""
FOLDER = Path("reports/long")
TRIALS = "trials.csv"


@dataclass(frozen=True)
class Run(Trial):
    """A trial; that of `CONTROL` begins from weights that differ in their last bit."""

    def optimizer(self, model: nn.Module, workload: Workload) -> torch.optim.Optimizer:
        """The optimizer that is trained."""
        if self.quantizer != CONTROL:
            return super().optimizer(model, workload)
        with torch.no_grad():
            for param in model.parameters():
                param.mul_(1 + 2.0**-23)
        return replace(self, quantizer=FULL).optimizer(model, workload)


def plan(work: Workload, seeds: int = SEEDS, rates: Sequence[float] = RATES) -> Iterator[Run]:
    """All runs: seeds outermost, so that each part of the plan has all arms."""
    for seed in range(seeds):
        for rate in rates:
            for quantizer in ARMS.values():
                yield Run(JUDGE, replace(work, lr=rate), quantizer, seed)


def table(frame: pd.DataFrame, rate: float) -> list[str]:
    """Rows of Markdown: each arm minus 32 bits at a learning rate, seed by seed."""
    own = frame[frame["lr"] == rate].pivot_table("loss", "seed", "quantizer")
    if FULL not in own:
        return ["No runs yet."]
    limit = own[FULL].median() + FAILED
    rows = []
    for arm, quantizer in ARMS.items():
        if quantizer in own and quantizer != FULL:
            apart = paired(own[quantizer], own[FULL])
            each = (own[quantizer] - own[FULL]).dropna()
            rows.append(
                (
                    arm,
                    f"`{quantizer}`",
                    str(apart["seeds"]),
                    f"{apart['difference']:+.4f} ({apart['low']:+.4f} to {apart['high']:+.4f})",
                    f"{each.median():+.4f}",
                    f"{each.std():.4f}",
                    str(int((own[quantizer] > limit).sum())),
                )
            )
    head = ("arm", "quantizers", "seeds", "minus 32 bits, nats", "median", "std", "failed")
    return markdown(head, rows)


def page(frame: pd.DataFrame, command: str) -> str:
    """The report."""
    lines = [
        "# Which rounding costs what over 10,000 steps",
        "",
        f"`{command}`; torch {torch.__version__}, one thread for each run. The plan is "
        "[preregistration.md](preregistration.md): arms, rates, tests and the number of seeds "
        f"({SEEDS}) were fixed before the first run. Tables have the runs that are done.",
        "",
    ]
    for rate in RATES:
        own = frame[(frame["lr"] == rate) & (frame["quantizer"] == FULL)]["loss"]
        lines += [
            f"## Learning rate {rate:g}",
            "",
            f"32 bits: {own.mean():.4f} nats per byte in the mean of {len(own)} seeds.",
            "",
            *table(frame, rate),
            "",
        ]
    return "\n".join(lines)


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long", description=__doc__)
    parser.add_argument("command", choices=("train", "report"))
    parser.add_argument("--seeds", type=count, default=SEEDS, help="seeds from 0 on")
    parser.add_argument("--rates", type=float, nargs="+", choices=RATES, default=RATES)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run later")
    parser.add_argument("--workers", type=count, help="processes (default: one per core)")
    parser.add_argument("--runs", type=Path, default=Path("runs/trials"), help="finished trials")
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args(argv)
    out = output_folder(options.out)
    if options.command == "train":
        work = tuned(pd.read_csv(out.parent / TUNING))
        restore(out / TRIALS, options.runs)
        every, end = (
            list(plan(work, options.seeds, options.rates)),
            time.monotonic() + 60 * options.minutes,
        )
        workers = options.workers or torch.get_num_threads()
        done: list[Run] = []
        for at in range(0, len(every), 2 * workers):
            if time.monotonic() > end:
                break
            done += every[at : at + 2 * workers]
            frame = run_all(done, options.runs, workers=workers)
            frame = frame.assign(key=[run.key for run in done])
            with replacing(out / TRIALS) as temporary:
                frame.to_csv(temporary, index=False)
    frame = pd.DataFrame(records(pd.read_csv(out / TRIALS)))
    write_report(out / "README.md", page(frame, command_line("benchmarks.long", ["report"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
