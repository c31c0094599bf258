"""Words and tables on the result of each preset beside 32 bits, from the committed rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from benchmarks.blind.equivalence import WITHIN, of_known_slope, percent
from benchmarks.blind.models import MODELS
from benchmarks.blind.report import nats, tuned_losses
from benchmarks.long import MARGINS, NEW, SHORTER, STUDIES, TRIALS, Ended, Study, ended, in_percent
from benchmarks.long_run import TRIALS as LONG_RUN
from benchmarks.long_run import TUNING, tuned
from benchmarks.long_run import compared as long_run
from benchmarks.markdown import markdown
from benchmarks.tasks import parameters
from benchmarks.trials import FULL
from benchmarks.version_0_3 import PAIR_OF
from docsite.page import ROOT
from qmaps.storage.files import records

REPORTS = ROOT / "reports"
KEEPS_UP, CANNOT_TELL, SLOWER = "keeps up", "cannot tell", "slower"
BEST = "the best rate"
LEVEL = 0.05
"""Level of the one-sided test of failures."""
TRAININGS = {
    "net for tables": {"teacher": {0.0015: "a quarter of the best rate", 0.006: BEST}},
    "sparse embeddings": {"ratings": {0.01: "half the best rate", 0.02: BEST}},
    "full batches": {"full-batch": {0.003: "below the best rate"}},
    "convnet": {"moved-digits": {0.001: "below the best rate"}},
    "language model": {"lm-tiny": {0.003: "a quarter of the best rate", 0.012: BEST}},
}
"""Kinds of long trainings: the task, and its learning rates relative to the best one."""
SHOWN = ("8bit", "4bit", "3bit", "2bit", "paper-8bit", "paper-4bit")
"""Presets of version 0.3."""
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


def word(result: Ended | None, preset: str) -> str:
    """The word for a preset of now in a long training."""
    if result is None or NEW[preset] not in result.losses or len(result.losses) < 2:
        return CANNOT_TELL
    if _fails_more(result, preset):
        return SLOWER
    by = result.slower(NEW[preset])
    if not result.fall > 0:  # NaN where it is not known
        return CANNOT_TELL
    if by["most"] < MARGINS[preset]:
        return KEEPS_UP
    return SLOWER if by["low"] > MARGINS[preset] else CANNOT_TELL


def _fails_more(result: Ended, preset: str) -> bool:
    """Return True if more runs failed than in 32 bits, by Fisher's exact test at `LEVEL`."""
    counts = []
    for quantizer in (NEW[preset], FULL):
        failed = result.failed(quantizer)
        counts.append((failed, int(result.losses[quantizer].count()) - failed))
    return bool(stats.fisher_exact(counts, alternative="greater").pvalue < LEVEL)


@dataclass(frozen=True)
class Training:
    """A long training: a kind at a rate."""

    kind: str
    rate: str
    study: Study
    result: Ended | None


def trainings(studies: Sequence[Study] = STUDIES) -> Iterator[Training]:
    """The trainings of these studies, by default the long ones, in the order of the tables."""
    frame = pd.read_csv(REPORTS / "long" / TRIALS)
    for kind, tasks in TRAININGS.items():
        for task, rates in tasks.items():
            for rate, name in rates.items():
                for study in studies:
                    if (study.task, study.rate) == (task, rate):
                        yield Training(kind, name, study, ended(frame, study))


def words() -> list[str]:
    """Kinds of training by presets of now: a word for each, or one for each rate."""
    rows = []
    for kind, group in groupby(trainings(), key=lambda training: training.kind):
        same = list(group)
        cells = []
        for preset in MARGINS:
            said = {training.rate: word(training.result, preset) for training in same}
            combined = " and ".join(f"{verdict} at {rate}" for rate, verdict in said.items())
            cells.append(combined if len({*said.values()}) > 1 else next(iter(said.values())))
        rows.append((kind, *cells))
    return markdown(("training", *(f"`{name}`" for name in MARGINS)), rows)


def summary(preset: str) -> str:
    """Counts of long trainings by word, for a preset."""
    words = [word(training.result, preset) for training in trainings()]
    counts = {said: words.count(said) for said in (KEEPS_UP, SLOWER, CANNOT_TELL)}
    if counts[CANNOT_TELL] == len(words):
        return f"in {len(words)} long trainings the runs cannot tell yet whether it keeps up"
    text = f"keeps up with 32 bits in {counts[KEEPS_UP]} of {len(words)} long trainings"
    if counts[SLOWER]:
        text += f", is slower in {counts[SLOWER]}"
    if counts[CANNOT_TELL]:
        text += f"; in {counts[CANNOT_TELL]} the runs cannot tell"
    return text


def now() -> list[str]:
    """The words, each with the preset's relative increase of steps, by length too."""
    rows = []
    for training in trainings((*SHORTER, *STUDIES)):
        study, result = training.study, training.result
        seeds = 0 if result is None else len(result.losses)
        rate = f"{study.rate:g}, {training.rate}"
        cells = [_cell(result, name) for name in MARGINS]
        kind = f"{training.kind} (`{study.task}`)"
        rows.append((kind, rate, f"{study.steps:,}", str(seeds), *cells))
    margins = (f"`{name}`, margin {margin:.0%}" for name, margin in MARGINS.items())
    return markdown(("training", "rate", "steps", "seeds", *margins), rows)


def _cell(result: Ended | None, preset: str) -> str:
    said = word(result, preset)
    if result is None or NEW[preset] not in result.losses:
        return f"{said}: no runs"
    failed = result.failed(NEW[preset])
    lost = f"; {failed} of {result.losses[NEW[preset]].count()} failed" if failed else ""
    return f"{said}: {in_percent(result.slower(NEW[preset]))}{lost}"


@lru_cache(1)
def blind() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows of all runs of the blind test, and of its comparisons."""
    return tuple(pd.read_csv(REPORTS / "blind" / f"{name}.csv") for name in ("trials", "steps"))  # type: ignore[return-value]


def former() -> list[str]:
    """Nine models by presets of version 0.3, at the best rate, in per cent of steps or nats."""
    trials, steps = blind()
    losses, sizes = tuned_losses(trials), parameters(trials)
    rows = {(row["judge"], row["quantizer"]): row for row in records(steps.query("factor == 1"))}

    def cell(model: str, preset: str) -> str:
        row = rows.get((model, PAIR_OF[preset]))
        if row is not None and np.isnan(row["steps"]):
            return f"{nats(losses, model, PAIR_OF[preset], FULL)} nats"
        return _outcome(row)

    return markdown(
        ("model", "parameters", "steps", *(f"`{name}`" for name in SHOWN)),
        [
            (
                f"{kind} (`{model}`)",
                f"{sizes[model] / 1e6:.2g} M",
                str(MODELS[model].steps),
                *(cell(model, preset) for preset in SHOWN),
            )
            for model, kind in KINDS.items()
        ],
    )


def _outcome(row: dict[str, Any] | None) -> str:
    if row is None:
        return "not trained"
    mark = " =" if row["outcome"] == "equivalent" else ""
    return f"**{percent(row)}{mark}**" if row["outcome"] in WITHIN else percent(row)


def quarter() -> list[str]:
    """The models with known slopes, at a quarter of the best rate.

    The first column of numbers is the loss of 32 bits itself there, as a share of steps.
    """
    trials, steps = blind()
    full = trials[(trials["quantizer"] == FULL) & (trials["length"] == 1)]
    falls = of_known_slope(steps[steps["factor"] == 1]).groupby("judge")["slope"].first()
    at = {(row["judge"], row["quantizer"]): row for row in records(steps.query("factor == 0.25"))}
    names = [name for name in SHOWN if name != "paper-8bit"]
    rows = []
    for model in KINDS:
        outcomes = [at.get((model, PAIR_OF[name])) for name in names]
        if all(row is None or np.isnan(row["steps"]) for row in outcomes):
            continue
        itself = "not known"
        if model in falls:
            losses = full[full["judge"] == model].pivot_table("loss", "seed", "factor")
            apart = (losses[0.25] - losses[1.0]).mean()
            itself = f"{100 * np.expm1(apart / falls[model]):+.1f}"
        rows.append((f"`{model}`", itself, *map(_outcome, outcomes)))
    return markdown(("model", "32 bits", *(f"`{name}`" for name in names)), rows)


def medians() -> list[str]:
    """Means beside medians over seeds, where single runs of 32 bits move the mean."""
    trials, steps = blind()
    full_length = trials[(trials["factor"] == 1) & (trials["length"] == 1)]
    results = []
    for model in ("lm-tiny", "stdlib-lm"):
        losses = full_length[full_length["judge"] == model].pivot_table("loss", "seed", "quantizer")
        fall = steps[(steps["factor"] == 1) & (steps["judge"] == model)]["slope"].iloc[0]
        results.append((f"`{model}`", losses, fall))
    frame, tuning = (pd.read_csv(REPORTS / name) for name in (LONG_RUN, TUNING))
    work = tuned(tuning)
    losses = frame[frame["steps"] == work.steps].pivot_table("loss", "seed", "quantizer")
    fall = long_run(frame, work)["slope"].iloc[0]
    results.append((f"`lm-tiny`, {work.steps:,} steps", losses, fall))
    names = ("8bit", "4bit", "3bit")
    rows = []
    for model, losses, fall in results:
        apart = [losses[PAIR_OF[name]] - losses[FULL] for name in names]
        pair = (
            " and ".join(f"{100 * np.expm1(d / fall):+.1f}" for d in (a.mean(), a.median()))
            for a in apart
        )
        rows.append((model, *pair))
    return markdown(("mean and median", *(f"`{name}`" for name in names)), rows)
