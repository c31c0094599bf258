"""Numbers before a training beside how long trainings ended.

``python -m benchmarks.long_prediction measure`` records a 32-bit run of each task of
`benchmarks.long`, replays the arms' pairs on it and writes reports/long/replays.csv; ``report``
writes reports/long/prediction.md and prediction.png from these rows and those of the trainings.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy import stats

import qmaps
from benchmarks.command import one_line_errors
from benchmarks.long import ARMS, CONTROL, FOLDER, SHORTER, STUDIES, TRIALS, Study, ended
from benchmarks.long_run import TASK, TUNING, tuned
from benchmarks.markdown import markdown
from benchmarks.trials import FULL
from qmaps import capture, sweep
from qmaps.analyze.recommend.verdict import LEVELS, level
from qmaps.analyze.states import MIN_SIZE
from qmaps.capture import Gradients, StateRecorder
from qmaps.lab.compare import Contender
from qmaps.lab.workloads import Workload, train
from qmaps.storage.files import records, replacing
from reproduction.report_file import write_report

WINDOW = 60
"""Replayed steps, from half of the run on."""
SEED = 1000
"""Seed of the recorded runs; no trial has it."""
MARGIN = 0.05
"""Largest share of steps by which a pair may be slower."""
STEP_COST, NOISE, FALL = "step cost", "accumulated noise of m", "octaves of v after a fall"
BOTH = "the larger of step cost and accumulated noise"
PREDICTORS = (STEP_COST, "noise of the update", "error of one update", NOISE, FALL, BOTH)
REPLAYS = "replays.csv"
PAIRS = [pair for pair in ARMS.values() if pair not in (FULL, CONTROL)]


def studies() -> list[Study]:
    """Each task at its lower rate, in all its steps."""
    return list({study.task: study for study in reversed(STUDIES)}.values())[::-1]


def record(work: Workload, folder: Path, step: int) -> Path:
    """Train in 32 bits with a seed of its own; the folder of the states of a step."""
    states = folder / "states"

    def recorder(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> StateRecorder:
        gradients = Gradients(WINDOW, 2**28)
        return StateRecorder(optimizer, states, names=model, steps=[step], gradients=gradients)

    train(
        work,
        Contender(FULL).optimizer,
        out=folder / "run",
        label=FULL,
        seed=SEED,
        checkpoint_every=work.steps,
        validate_every=work.steps,
        hooks=[recorder],
    )
    return states


def measured(study: Study) -> pd.DataFrame:
    """The predictors of all pairs, from a 32-bit run of a seed of its own."""
    work = study.work or tuned(pd.read_csv(FOLDER.parent / TUNING))
    work = replace(work, lr=study.rate, steps=study.steps)
    half, min_size = study.steps // 2, MIN_SIZE if study.task == TASK else 0
    with tempfile.TemporaryDirectory() as folder:
        states = record(work, Path(folder), half)
        captured = capture.load(states, step=half)
        replays = qmaps.replay.run(captured, PAIRS, min_quantized_size=min_size)
        errors = sweep.summarize(sweep.run(captured, PAIRS, min_quantized_size=min_size)).set_index(
            "quantizer"
        )
    summary = qmaps.replay.summarize(replays).set_index("quantizer")
    frame = pd.DataFrame(
        {
            STEP_COST: summary["step_cost"],
            "noise of the update": summary["update_noise"],
            "error of one update": errors["mean_abs_error"],
            NOISE: summary["accumulated_noise_first"].fillna(0.0),
            FALL: np.log2(summary["fall_ratio_second"]).abs().fillna(0.0),
        }
    )
    levels = [level(row) for row in records(summary)]
    return frame.assign(task=study.task, verdict=levels).reset_index(names="quantizer")


def outcomes(trials: pd.DataFrame, study: Study) -> pd.DataFrame:
    """Results of the pairs of a study.

    Returns:
        Indexed by quantizer, `slower` (the mean difference of the final loss from 32 bits, in units
        of log steps), `low` and `high` (its 95 % interval) and `seeds`; empty if the slope is not
        known or the runs have one seed.
    """
    result = ended(trials, study)
    columns = ["slower", "low", "high", "seeds"]
    if result is None or not result.fall > 0:
        return pd.DataFrame(columns=columns, index=pd.Index([], dtype=str))
    rows = {}
    for pair in result.losses.columns.intersection(PAIRS):
        by = result.slower(pair)
        seeds = int((result.losses[pair] - result.losses[FULL]).count())
        if seeds > 1:
            rows[pair] = (*(float(np.log1p(by[name])) for name in ("mean", "low", "high")), seeds)
    return pd.DataFrame(list(rows.values()), index=pd.Index(list(rows), dtype=str), columns=columns)


def points(trials: pd.DataFrame, replays: pd.DataFrame) -> pd.DataFrame:
    """A row for each task and pair: the predictors and the outcome."""
    replays = replays.assign(
        **{
            BOTH: np.maximum(
                replays[STEP_COST] / replays[STEP_COST].median(),
                replays[NOISE] / replays[NOISE].median(),
            )
        }
    )
    return pd.concat(
        replays[replays["task"] == study.task].merge(
            outcomes(trials, study), left_on="quantizer", right_index=True
        )
        for study in studies()
    )


def bound(frame: pd.DataFrame, predictor: str) -> float:
    """Largest value of a predictor below that of every pair slower than the margin."""
    slow = frame[frame["slower"] > np.log1p(MARGIN)][predictor].min()
    below = frame[predictor] if np.isnan(slow) else frame[predictor][frame[predictor] < slow]
    return float(below.max())


def committed() -> tuple[pd.DataFrame, pd.DataFrame]:
    """The committed rows: trials and replays, as `points` takes them."""
    return pd.read_csv(FOLDER / TRIALS), pd.read_csv(FOLDER / REPLAYS)


def ranks(frame: pd.DataFrame, predictor: str) -> list[float]:
    """The rank correlation of a predictor with the outcome, by task."""
    return [
        float(stats.spearmanr(pairs[predictor], pairs["slower"]).statistic)
        for _, pairs in frame.groupby("task", sort=False)
    ]


def correlations() -> str:
    """The mean rank correlations of the committed rows: the step cost's and the largest."""
    frame = points(*committed())
    means = {predictor: float(np.nanmean(ranks(frame, predictor))) for predictor in PREDICTORS}
    best = max(means, key=means.__getitem__)
    return f"{means[STEP_COST]:+.2f} of the step cost, and at most {means[best]:+.2f} ({best})"


def compared(frame: pd.DataFrame) -> list[str]:
    """A row for each predictor: rank correlations, and bounds chosen without one task."""
    rows = []
    for predictor in PREDICTORS:
        groups = dict(list(frame.groupby("task", sort=False)))
        by_task = ranks(frame, predictor)
        told = kept_up = all_kept_up = 0
        for task, pairs in groups.items():
            limit = bound(frame[frame["task"] != task], predictor)
            below = pairs[pairs[predictor] <= limit]
            told += len(below)
            kept_up += int((below["slower"] <= np.log1p(MARGIN)).sum())
            all_kept_up += int((pairs["slower"] <= np.log1p(MARGIN)).sum())
        rows.append(
            (
                predictor,
                f"{np.nanmean(by_task):.2f}",
                ", ".join(f"{rank:.2f}" for rank in by_task),
                f"{kept_up} of {told}",
                f"{kept_up} of {all_kept_up}",
                f"{bound(frame, predictor):.2g}",
            )
        )
    return markdown(
        (
            "predictor",
            "rank correlation",
            "by task",
            "kept up below the bound of the others",
            "of all that kept up",
            "bound from all",
        ),
        rows,
    )


def ends(frame: pd.DataFrame) -> dict[str, tuple[int, int]]:
    """For each verdict, how many pairs kept up, and of how many."""
    kept_up = frame["slower"] <= np.log1p(MARGIN)
    return {
        name: (int(kept_up[frame["verdict"] == name].sum()), int((frame["verdict"] == name).sum()))
        for name in LEVELS
    }


def page(frame: pd.DataFrame) -> str:
    """The report."""
    tasks = frame.groupby("task", sort=False)
    lines = [
        "# Which number predicts a long training?",
        "",
        "`python -m benchmarks.long_prediction report`, from [trials.csv](trials.csv) and "
        "[replays.csv](replays.csv); the plan is in [preregistration.md](preregistration.md).",
        "",
        f"{len(frame)} pairs of {tasks.ngroups} tasks: "
        + ", ".join(
            f"`{task}` ({len(pairs)} pairs, {pairs['seeds'].min():.0f} to "
            f"{pairs['seeds'].max():.0f} seeds)"
            for task, pairs in tasks
        )
        + f". A pair keeps up if its mean over seeds is at most {MARGIN:.0%} of steps slower. The "
        "bound of the others is the largest value up to which all their pairs keep up.",
        "",
        *compared(frame),
        "",
        "What `qmaps recommend` says of these pairs, and how many of them kept up:",
        "",
        *markdown(
            ("verdict", "kept up"),
            [(name, f"{kept_up} of {pairs}") for name, (kept_up, pairs) in ends(frame).items()],
        ),
        "",
        "![Steps lost against accumulated noise](prediction.png)",
    ]
    return "\n".join(lines) + "\n"


def draw(trials: pd.DataFrame, replays: pd.DataFrame, path: Path) -> None:
    """Write a PNG: steps lost against accumulated noise, a color a task, a panel a length."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    every = [*studies(), *SHORTER]
    lengths = {"500 steps": (0, 500), "2,000 steps": (501, 2000), "8,000 and more": (2001, 10**9)}
    panels = figure.subplots(1, len(lengths), sharey=True)
    colors = {study.task: f"C{number}" for number, study in enumerate(studies())}
    shown = {}
    for panel, (title, (low, high)) in zip(panels, lengths.items(), strict=True):
        for study in (study for study in every if low <= study.steps <= high):
            predictors = replays[replays["task"] == study.task].set_index("quantizer")
            told = outcomes(trials, study).join(predictors, how="inner")
            if not len(told):
                continue
            mean, down, up = (100 * np.expm1(told[name]) for name in ("slower", "low", "high"))
            shown[study.task] = panel.errorbar(
                told[NOISE],
                mean,
                yerr=[mean - down, up - mean],
                fmt="o",
                markersize=4,
                elinewidth=0.7,
                alpha=0.7,
                color=colors[study.task],
            )
        panel.axhline(0, color="#9498a0", linewidth=1)
        panel.axhline(100 * MARGIN, color="#9498a0", linewidth=1, linestyle="--")
        panel.set_xscale("symlog", linthresh=1e-3)
        panel.set_yscale("symlog", linthresh=10)
        panel.set(title=title, xlabel="accumulated noise of m", xlim=(-2e-4, 10))
    panels[0].set_ylabel("slower by, % of steps")
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=len(shown) or 1)
    figure.savefig(path, format="png", dpi=120)


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_prediction")
    parser.add_argument("command", choices=("measure", "report"))
    parser.add_argument("--tasks", nargs="+", choices=[study.task for study in studies()])
    options = parser.parse_args(argv)
    path = FOLDER / REPLAYS
    if options.command == "measure":
        earlier = pd.read_csv(path) if path.exists() else pd.DataFrame({"task": []})
        for study in studies():
            if study.task in (options.tasks or (study.task,)):
                remaining = earlier[earlier["task"] != study.task]
                earlier = pd.concat([remaining, measured(study)], ignore_index=True)
                with replacing(path) as temporary:
                    earlier.to_csv(temporary, index=False)
                print(f"measured {study.task}")
    trials, replays = committed()
    with replacing(FOLDER / "prediction.png") as temporary:
        draw(trials, replays, temporary)
    write_report(FOLDER / "prediction.md", page(points(trials, replays)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
