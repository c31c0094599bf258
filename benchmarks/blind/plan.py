"""The plan of the trainings, which reports/blind/preregistration.md explains."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from benchmarks.blind.judges import JUDGES, SEEN
from benchmarks.trials import FULL, Trial
from benchmarks.version_0_3 import CANDIDATES, PAIR_OF, PRESETS
from qmaps.errors import BadValueError
from qmaps.lab.workloads import Workload

MARGIN = 0.02
"""Share of more or fewer steps within which a quantizer is equivalent to 32 bits."""
FACTORS = (1.0, 0.25, 0.05)
"""Learning rates, in units of the tuned one. Presets and choices are trained at those of `Size`,
other pairs at the first."""
CURVE_LENGTHS, CURVE_SEEDS = (0.7, 1.4), 2
"""Lengths of further runs in 32 bits, in units of the judge's: they tell what a step is worth."""


@dataclass(frozen=True)
class Size:
    """Amount of training on a judge.

    Attributes:
        seeds: of each quantizer.
        factors: those of `FACTORS`.
        curve_seeds: of the runs in 32 bits of other lengths.
        without: a preset that is not trained.
        further_seeds: of `FURTHER` at the first rate.
    """

    seeds: int
    factors: tuple[float, ...] = FACTORS
    curve_seeds: int = CURVE_SEEDS
    without: str = ""
    further_seeds: int = 0


SIZES = {
    "microbiome": Size(5),
    "docstring-lm": Size(8, curve_seeds=8),
    "pitch": Size(4),
    "lora": Size(4),
    "voice": Size(6),
    "lm-tiny": Size(8, FACTORS[:2], curve_seeds=8),
    "stdlib-lm": Size(4, FACTORS[:2], without="paper-8bit", further_seeds=4),
    "digits": Size(8, FACTORS[:2], curve_seeds=8, without="paper-8bit"),
    "minilm": Size(4, FACTORS[:2], curve_seeds=4, without="paper-8bit"),
}
"""By judge. Numbers of seeds are from the pilot; those of `SEEN` are fixed."""
FURTHER = (FULL, PAIR_OF["8bit"], PAIR_OF["4bit"])
"""Quantizers that are trained with more seeds."""
MOST_SEEDS = 16
"""A model that needs more is not used."""
PILOT_SEEDS = (200, 201, 202)
SAFE_SHARE = 0.95
"""Share of the pairs called safe that must end within the margin for the word to stay."""

DANGEROUS = (
    "B128/DE@4s + B128/DE@4u",
    "B128/DE@4s + B128/DE-0@4u",
    "B2048/DE@4s+sr + B2048/DE-0@4u",
    "B128/linear@2s+sr + B128/DE-0@3u",
    "B256/DE@8s + B128/linear@4u",
)
"""Pairs beside the default candidates, so that not all are good ones: a second moment of 0, nearest
rounding of 4 bits, long blocks, few levels."""
PAIRS = (*CANDIDATES[:15], *DANGEROUS)
CHOICES = ("recommended", "recommended from a checkpoint", "mix 1", "mix 2", "mix 3")
"""Names of choices by parameter: of `qmaps.recommend` with recorded gradients and without, and
drawn at random with as many bytes as the first."""


def size(judge: str) -> int:
    """Number of trials on a judge."""
    return len(trials(judge, Path()))


def described(frame: pd.DataFrame, trials: Sequence[Trial]) -> pd.DataFrame:
    """Rows of `run_all` with `factor` and `length` in units of the judge's own, and `key`."""
    own = [JUDGES[trial.judge] for trial in trials]
    return frame.assign(
        factor=[round(t.workload.lr / work.lr, 9) for t, work in zip(trials, own, strict=True)],
        length=[round(t.workload.steps / w.steps, 9) for t, w in zip(trials, own, strict=True)],
        key=[trial.key for trial in trials],
    )


def pilot(judge: str) -> list[Trial]:
    """Runs that tell the number of seeds: 32 bits and ``8bit``, and shorter ones for the slope."""
    work = JUDGES[judge]
    eight_bits = PAIR_OF["8bit"]
    short = replace(work, steps=round(work.steps * CURVE_LENGTHS[0]))
    return [
        Trial(judge, variant, quantizer, seed)
        for variant, quantizer in ((work, FULL), (work, eight_bits), (short, FULL))
        for seed in PILOT_SEEDS
    ]


def choices_of(judge: str) -> tuple[str, ...]:
    """Names of the choices that are trained on a judge."""
    return () if judge in SEEN else CHOICES


def slug(name: str) -> str:
    """The name of a choice's file."""
    return name.replace(" ", "-") + ".json"


def other_lengths(judge: str, work: Workload, seeds: int) -> list[Trial]:
    """Runs in 32 bits of `CURVE_LENGTHS`, which tell what a step is worth."""
    return [
        Trial(judge, replace(work, steps=round(work.steps * length)), FULL, seed)
        for seed in range(seeds)
        for length in CURVE_LENGTHS
    ]


def trials(judge: str, folder: Path) -> list[Trial]:
    """All trials on a judge, seeds outermost, so that one that is stopped has whole seeds.

    Args:
        judge: its name.
        folder: of the files of `CHOICES`.
    """
    if judge not in SIZES:
        known = ", ".join(SIZES)
        raise BadValueError(f"judge={judge!r} has no number of seeds yet; allowed are {known}")
    work, amount = JUDGES[judge], SIZES[judge]
    out: list[Trial] = []
    for factor in amount.factors:
        specs: Iterable[str] = PRESETS if factor < 1 or judge in SEEN else PAIRS
        names = [FULL, *(spec for spec in specs if PRESETS.get(spec) != amount.without)]
        choices = choices_of(judge) if factor == 1 else choices_of(judge)[:1]
        files = {name: str(folder / slug(name)) for name in choices}
        own = [
            Trial(judge, work, name, seed, files.get(name, ""))
            for seed in range(amount.seeds)
            for name in (*names, *choices)
        ]
        own += other_lengths(judge, work, amount.curve_seeds)
        out += [trial.at(factor) for trial in own]
    further = range(amount.seeds, amount.seeds + amount.further_seeds)
    out += [Trial(judge, work, name, seed) for seed in further for name in FURTHER]
    return sorted(out, key=lambda trial: trial.seed)
