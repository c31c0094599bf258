"""Presets over trainings of 8,000 steps and more: the cost of each rounding.

``python -m benchmarks.long train`` trains the arms of each of `STUDIES` and keeps a row of each run
in reports/long/trials.csv; ``report`` writes reports/long/README.md from them. ``train`` continues
an interrupted plan; ``--tasks``, ``--seeds`` and ``--minutes`` select a part of it. The plan,
written before the runs, is reports/long/preregistration.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import nn

from benchmarks.blind.equivalence import slope
from benchmarks.command import command_line, count, one_line_errors
from benchmarks.long_run import TASK, TUNING, tuned
from benchmarks.long_tasks import FullBatch, MovedDigits, Ratings, Teacher
from benchmarks.markdown import markdown
from benchmarks.paired import detectable, paired
from benchmarks.trials import FULL, Trial, restore, run_all
from qmaps.analyze.states import MIN_SIZE
from qmaps.lab.compare import Contender
from qmaps.lab.workloads import Workload
from qmaps.storage.files import output_folder, records, replacing
from reproduction.report_file import write_report

CONTROL = "32-bit, nudged"
FIRST = "B64xbf16/mu-law10:linear0@4s"
FIVE = "B64xbf16/mu-law10:linear0@5s"
SECOND = "B64xbf16/geometric"
NEW = {
    "8bit": "B256/DE-sym@8s + B256/geometric@8u+qsr",
    "4bit": f"{FIVE}+qsr + {SECOND}@3u+qsr",
    "3bit": f"{FIRST}+qsr + {SECOND}@2u+qsr",
    "2bit": f"B16x8/linear0(full=true)@2s+qsr + {SECOND}@2u+qsr",
}
"""The presets proposed by this study."""
FORMER = {
    "8bit, former": "B256/DE-sym@8s + B256/DE-0@8u",
    "4bit, former": "B128/DE-sym@4s+sr + B128/DE-0@4u",
    "3bit, former": "B128/DE-sym@3s+sr + B128/DE-0@3u",
}
EVEN = {"4 bits for both": f"{FIRST}+qsr + {SECOND}@4u+qsr"}
"""The first version of ``4bit`` in `NEW`."""
PARTS = {
    "4bit, former, exchanged": "B128/DE-sym@4s + B128/DE-0@4u+sr",
    "8bit, former, v +sr": "B256/DE-sym@8s + B256/DE-0@8u+sr",
    "m of 4bit alone": f"{FIRST}+qsr + 32-bit",
    "m of 4bit to nearest": f"B64xbf16/mu-law10:linear0(nearest=true)@4s + {SECOND}@4u+qsr",
    "v of 4bit alone": f"32-bit + {SECOND}@4u+qsr",
    "v of 3bit alone": f"32-bit + {SECOND}@2u+qsr",
}
FIRST_PLAN = {
    "m of 4bit, former, alone": "B128/DE-sym@4s+sr + 32-bit",
    "m to nearest alone": "B128/DE-sym@4s + 32-bit",
    "v of 4bit, former, alone": "32-bit + B128/DE-0@4u",
    "v +sr alone": "32-bit + B128/DE-0@4u+sr",
    "v in log +sr": "B128/DE-sym@4s + logB256/log2-0(in_log=true)@4u+sr",
    "3bit, former, exchanged": "B128/DE-sym@3s + B128/DE-0@3u+sr",
    "3bit, former, v in log +sr": "B128/DE-sym@3s+sr + logB256/log2-0(in_log=true)@3u+sr",
}
"""Arms of the earlier plan, with the seeds finished before this plan."""
CONTROLS = {"32 bits": FULL, "32 bits, nudged": CONTROL}
ARMS = CONTROLS | NEW | EVEN | FORMER | PARTS | FIRST_PLAN
"""Quantizers of Adam's moments by arm. The first two are one optimizer: their difference is the
noise that any change of a rounding makes."""
MARGINS = {"8bit": 0.05, "4bit": 0.05, "3bit": 0.15}
"""Largest share of steps by which a preset may be slower."""
LENGTHS, CURVE_SEEDS = (0.7, 1.4), 4
"""Other lengths of 32 bits, for the value of a step, and their seeds."""
FAILED = 0.1
"""A run fails if its loss exceeds the median of 32 bits by this share."""
SEEN = {
    ("teacher", "4bit"): 4,
    ("ratings", "4bit"): 4,
    ("full-batch", "4bit"): 3,
    ("moved-digits", "4bit"): 2,
}
"""Seeds used to choose an arm; they do not count."""
FOLDER = Path("reports/long")
TRIALS = "trials.csv"


@dataclass(frozen=True)
class Study:
    """A task, its learning rate, and its runs.

    Attributes:
        task: its name, in rows and in ``--tasks``.
        work: the workload at this rate; None for the one of `benchmarks.long_run`.
        rate: the learning rate.
        arms: names in `ARMS`; from the seed `FULL_SEEDS` on, those of `CORE`.
        seeds: number of seeds.
        steps: number of steps.
    """

    task: str
    work: Workload | None
    rate: float
    arms: tuple[str, ...]
    seeds: int
    steps: int = 8000

    def runs(self, language: Workload, seed: int) -> Iterator[Run]:
        """Those of a seed; `language` is the workload of `TASK`."""
        work = replace(self.work or language, lr=self.rate, steps=self.steps)
        for arm in self.arms if seed < FULL_SEEDS else CORE:
            yield Run(self.task, work, ARMS[arm], seed)
        for length in LENGTHS if seed < CURVE_SEEDS else ():
            yield Run(self.task, replace(work, steps=round(self.steps * length)), FULL, seed)


WITHOUT_PARTS = tuple(CONTROLS | NEW | EVEN | FORMER)
ALL = (*WITHOUT_PARTS, *PARTS)
CORE = ("32 bits", "4bit", "8bit", "3bit", "4bit, former")
OF_LANGUAGE = (*CONTROLS, "4bit", "3bit", "8bit", "4bit, former")
FULL_SEEDS = 4
STUDIES = (
    Study("teacher", Teacher(), 0.0015, ALL, 24),
    Study("ratings", Ratings(), 0.01, ALL, 24),
    Study("full-batch", FullBatch(), 0.003, ALL, 8),
    Study("moved-digits", MovedDigits(), 0.001, OF_LANGUAGE, 24),
    Study("lm-tiny", None, 0.003, OF_LANGUAGE, 24, 10_000),
    Study("teacher", Teacher(), 0.006, WITHOUT_PARTS, 24),
    Study("ratings", Ratings(), 0.02, WITHOUT_PARTS, 24),
    Study("lm-tiny", None, 0.012, OF_LANGUAGE, 24, 10_000),
)
SHORTER = tuple(
    Study(study.task, study.work, study.rate, OF_LANGUAGE, 12, steps)
    for steps in (500, 2000)
    for study in STUDIES
    if (study.task, study.rate) in {("teacher", 0.0015), ("ratings", 0.01), ("lm-tiny", 0.003)}
)
"""The same in fewer steps."""


@dataclass(frozen=True)
class Run(Trial):
    """A run; `CONTROL` starts from weights with a different last bit.

    States of any size are quantized, except on `TASK`, as in the first plan.
    """

    def optimizer(self, model: nn.Module, workload: Workload) -> torch.optim.Optimizer:
        """The optimizer of the run."""
        if self.quantizer == CONTROL:
            with torch.no_grad():
                for param in model.parameters():
                    param.mul_(1 + 2.0**-23)
        quantizers = None if self.quantizer in (FULL, CONTROL) else self.quantizer
        min_size = MIN_SIZE if self.judge == TASK else 0
        contender = Contender(self.quantizer, quantizers, min_quantized_size=min_size)
        return contender.optimizer(model, workload)


def plan(
    language: Workload, seeds: int | None = None, tasks: Sequence[str] | None = None
) -> Iterator[Run]:
    """All runs: seeds outermost, so each part of the plan has all tasks and arms.

    Args:
        language: the tuned workload of `TASK`.
        seeds: maximum number of seeds of each study.
        tasks: tasks of the selected studies.
    """
    for seed in range(max(study.seeds for study in STUDIES)):
        for study in (*STUDIES, *SHORTER):
            if seed < min(study.seeds, seeds or study.seeds) and study.task in (
                tasks or (study.task,)
            ):
                yield from study.runs(language, seed)


def slower(apart: pd.Series, fall: float, error: float) -> dict[str, float]:
    """Relative increase of the number of steps for the same loss, with confidence bounds.

    Args:
        apart: differences of the final loss from 32 bits, one for each seed.
        fall: decrease of the loss per unit of log steps.
        error: its standard error; it widens the interval.

    Returns:
        `mean`, `low` and `high` (95 % interval), and `most` (one-sided 95 % bound); NaN with fewer
        than two seeds.
    """
    n, mean = len(apart), float(apart.mean() / fall)
    if n < 2:
        return dict.fromkeys(("low", "high", "most"), float("nan")) | {"mean": np.expm1(mean)}
    spread = float(np.hypot(apart.sem() / fall, mean * error / fall))
    t = stats.t(n - 1)
    ends = {"mean": 0.0, "low": t.ppf(0.025), "high": t.ppf(0.975), "most": t.ppf(0.95)}
    return {name: float(np.expm1(mean + at * spread)) for name, at in ends.items()}


@dataclass(frozen=True)
class Ended:
    """Results of the runs of a study.

    Attributes:
        steps: number of steps.
        losses: final losses, seeds by quantizers.
        fall: decrease of the loss of 32 bits per unit of log steps; NaN where not known.
        error: its standard error.
    """

    steps: int
    losses: pd.DataFrame
    fall: float
    error: float

    def slower(self, quantizer: str) -> dict[str, float]:
        """The result of `slower` of the runs with `quantizer`."""
        apart = (self.losses[quantizer] - self.losses[FULL]).dropna()
        return slower(apart, self.fall, self.error)

    def failed(self, quantizer: str) -> int:
        """Number of failed runs."""
        return int((self.losses[quantizer] > (1 + FAILED) * self.losses[FULL].median()).sum())


def ended(frame: pd.DataFrame, study: Study) -> Ended | None:
    """Final losses of a study among the rows of `frame`; None without rows."""
    lengths = [study.steps, *(round(study.steps * length) for length in LENGTHS)]
    runs = frame[
        (frame["judge"] == study.task)
        & np.isclose(frame["lr"], study.rate)
        & frame["steps"].isin(lengths)
    ]
    if CONTROL not in set(runs["quantizer"]):
        return None
    steps = study.steps
    losses = runs[runs["steps"] == steps].pivot_table("loss", "seed", "quantizer")
    for (task, arm), seen in SEEN.items():
        if task == study.task and study in STUDIES and ARMS[arm] in losses:
            losses.loc[losses.index < seen, ARMS[arm]] = float("nan")
    curve = runs[
        (runs["quantizer"] == FULL) & runs["seed"].isin(runs[runs["steps"] != steps]["seed"])
    ]
    complete = curve["steps"].nunique() == 1 + len(LENGTHS)
    return Ended(steps, losses, *(slope(curve, steps) if complete else (float("nan"),) * 2))


def table(frame: pd.DataFrame, study: Study) -> tuple[str, list[str]]:
    """A sentence on a study, and rows of Markdown: each arm minus 32 bits, seed by seed."""
    result = ended(frame, study)
    if result is None:
        return "No runs yet.", []
    steps, losses, fall, error = result.steps, result.losses, result.fall, result.error
    has_slope, rows = np.isfinite(fall), []
    noise = (losses[CONTROL] - losses[FULL]).dropna()
    for arm, quantizer in ARMS.items():
        if quantizer not in losses or quantizer == FULL:
            continue
        comparison = paired(losses[quantizer], losses[FULL])
        apart = (losses[quantizer] - losses[FULL]).dropna()
        steps_more = result.slower(quantizer)
        margin = MARGINS.get(arm)
        told = margin is not None and np.isfinite(steps_more["most"])
        shown = "" if not told else "yes" if steps_more["most"] < margin else "no"
        rows.append(
            (
                arm,
                f"`{quantizer}`",
                str(comparison["seeds"]),
                f"{comparison['difference']:+.4f}"
                + (
                    f" ({comparison['low']:+.4f} to {comparison['high']:+.4f})"
                    if len(apart) > 1
                    else ""
                ),
                f"{apart.median():+.4f}",
                in_percent(steps_more),
                f"{shown} ({margin:.0%})" if told else shown,
                str(result.failed(quantizer)),
            )
        )
    difference = detectable(float(noise.std()), len(noise)) if len(noise) > 1 else float("nan")
    sentence = f"{steps:,} steps; 32 bits end at {losses[FULL].mean():.4f} in {len(losses)} seeds"
    if has_slope:
        sentence += f", and fall by {fall:.4f} (standard error {error:.4f}) per unit of log steps"
    if len(noise) > 1:
        sentence += (
            f". The control's differences have a standard deviation of {noise.std():.4f}, so that "
            f"{difference:.4f} is seen in 8 of 10 cases"
        )
    if has_slope and len(noise) > 1:
        sentence += f", {difference / fall:.1%} of steps"
    sentence += "."
    return sentence, markdown(HEAD, rows)


HEAD = ("arm", "quantizers", "seeds", "minus 32 bits", "median", "slower by, %", "shown", "failed")


def in_percent(row: Mapping[str, float]) -> str:
    """Mean and interval of `slower`."""
    if not np.isfinite(row["low"]):
        return "not known"
    return "{:+.1f} ({:+.1f} to {:+.1f})".format(*(100 * row[n] for n in ("mean", "low", "high")))


def page(frame: pd.DataFrame, command: str) -> str:
    """The report."""
    lines = [
        "# Which rounding costs what over 8,000 steps and more",
        "",
        f"`{command}`; torch {torch.__version__}, one thread for each run. The plan is "
        "[preregistration.md](preregistration.md): tasks, rates, arms, margins and tests were "
        "fixed before the runs. Tables have the runs that are done. *Slower by* is a share of "
        "steps with a 95 % interval that has the error of the slope in it; *shown* says whether "
        "its one-sided 95 % bound is below the margin.",
        "",
    ]
    for study in STUDIES:
        sentence, rows = table(frame, study)
        lines += [
            f"## {study.task} at the learning rate {study.rate:g}",
            "",
            sentence,
            "",
            *rows,
            "",
        ]
    return "\n".join(lines)


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long", description=__doc__)
    parser.add_argument("command", choices=("train", "report"))
    parser.add_argument("--tasks", nargs="+", choices=sorted({study.task for study in STUDIES}))
    parser.add_argument("--seeds", type=count, help="at most so many of each study")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run later")
    parser.add_argument("--workers", type=count, help="processes (default: one per core)")
    parser.add_argument("--runs", type=Path, default=Path("runs/trials"), help="finished trials")
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args(argv)
    out = output_folder(options.out)
    if options.command == "train":
        language = tuned(pd.read_csv(out.parent / TUNING))
        restore(out / TRIALS, options.runs)
        earlier = pd.read_csv(out / TRIALS) if (out / TRIALS).exists() else pd.DataFrame()
        every = list(plan(language, options.seeds, options.tasks))
        end, workers = time.monotonic() + 60 * options.minutes, options.workers or 2
        done: list[Run] = []
        for at in range(0, len(every), 8 * workers):
            if time.monotonic() > end:
                break
            done += every[at : at + 8 * workers]
            frame = run_all(done, options.runs, workers=workers)
            frame = frame.assign(key=[run.key for run in done])
            together = pd.concat([earlier, frame]).drop_duplicates("key", keep="last")
            with replacing(out / TRIALS) as temporary:
                together.to_csv(temporary, index=False)
    frame = pd.DataFrame(records(pd.read_csv(out / TRIALS)))
    write_report(out / "README.md", page(frame, command_line("benchmarks.long", ["report"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
