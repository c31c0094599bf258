"""Plan of the trainings: drawn once, by a fixed seed, before anything was measured."""

from __future__ import annotations

import random
from dataclasses import dataclass

from benchmarks.judges import KNOWN, PAPER
from benchmarks.trials import FULL, Trial
from reproduction.judges import JUDGES

FIRST = {
    "bits": (2, 3, 4, 5, 6, 8),
    "map": ("DE", "linear", "quantile-normal"),
    "normalizer": ("B128", "B2048"),
    "rounding": ("", "+sr"),
}
SECOND = {
    "bits": (2, 3, 4, 5, 6, 8),
    "map": ("DE-0", "linear", "DE", "power3"),
    "normalizer": ("B128", "B2048", "rank1"),
    "rounding": ("", "+sr"),
}
COUNT = 120
FIXED = (
    *(pair for pair in KNOWN if pair != FULL),
    "B128/DE@4s+sr + rank1/linear@4u",
    "B128/DE@4s + B128/DE-0@4u",
    "B128/DE@4s + 32-bit",
    "B128/DE@4s+sr + 32-bit",
    "32-bit + rank1/linear@4u",
    "32-bit + B128/DE-0@4u",
    "32-bit + B128/DE@4u",
    "B128/DE@4s + B128/DE@4u",
    "B128/DE@3s+sr + B128/DE-0@3u",
    "B128/linear@3s+sr + B128/DE-0@3u",
    "B128/linear@2s+sr + B128/DE-0@3u",
    "B2048/DE@8s + B2048/DE@8u",
)
"""Pairs that are in every part, in this order: those of the papers and of earlier measurements."""


@dataclass(frozen=True)
class Part:
    """Trials on one judge.

    Attributes:
        judge: its name.
        pairs: how many pairs, from the beginning of `pairs()`.
        seeds: number of seeds.
        factors: learning rates, in units of the judge's own.
    """

    judge: str
    pairs: int
    seeds: int
    factors: tuple[float, ...] = (1.0,)

    def trials(self) -> list[Trial]:
        """All of them, seeds outermost, so that a part that is stopped has whole seeds."""
        return [
            Trial(self.judge, JUDGES[self.judge], quantizer, seed).at(factor)
            for seed in range(self.seeds)
            for factor in self.factors
            for quantizer in (FULL, *pairs()[: self.pairs])
        ]


PARTS = {
    "small": Part("docstring-lm", COUNT, 8),
    "rates": Part("docstring-lm", 40, 8, (0.5, 2.0)),
    "scratch": Part("lm-tiny", COUNT, 8),
    "minilm": Part("minilm", 16, 3),
    "lm": Part("stdlib-lm", 30, 3),
}
"""`small` is the one that predictors are fitted on; all others are held out."""


def pairs() -> list[str]:
    """The pairs of quantizers: `FIXED`, then draws without repetition."""
    draw = random.Random(20)
    chosen = dict.fromkeys(FIXED)
    assert PAPER in chosen
    while len(chosen) < COUNT:
        # Sides of similar widths, as nobody keeps one moment in 2 bits and the other in 8.
        first = draw.choice(FIRST["bits"])
        near = [bits for bits in SECOND["bits"] if abs(bits - first) <= 1]
        chosen[
            f"{_spec(draw, FIRST, first, 's')} + {_spec(draw, SECOND, draw.choice(near), 'u')}"
        ] = None
    return list(chosen)


def _spec(draw: random.Random, side: dict[str, tuple], bits: int, sign: str) -> str:  # type: ignore[type-arg]
    normalizer, name, rounding = (draw.choice(side[k]) for k in ("normalizer", "map", "rounding"))
    return f"{normalizer}/{name}@{bits}{sign}{rounding}"
