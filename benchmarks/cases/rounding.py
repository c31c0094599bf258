"""Cost of stochastic rounding in a step."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from benchmarks.case import OURS, Case, Setup
from benchmarks.cases.adamw import EIGHT, matches, needs, ours, traffic
from benchmarks.data import matrices, new_gradients, parameters

NEAREST = "qmaps, to nearest"
STOCHASTIC = f"{EIGHT[0]}+sr", f"{EIGHT[1]}+sr"


def beside(params: list[Tensor]) -> Setup:
    """8-bit AdamW with both moments rounded at random, and to nearest."""
    return Setup(
        {OURS: lambda: ours(params, STOCHASTIC).step, NEAREST: lambda: ours(params, EIGHT).step},
        elements=sum(p.numel() for p in params),
        nbytes=dict.fromkeys((OURS, NEAREST), traffic(EIGHT)),
        needs={OURS: needs(STOCHASTIC), NEAREST: needs(EIGHT)},
        refresh=new_gradients(params),
    )


def make(scale: float) -> Setup:
    """`beside` on the CPU, and whether the answers are right."""
    setup = beside(parameters(matrices(scale)))
    return replace(setup, check=lambda: matches(lambda params: ours(params, STOCHASTIC)))


CASES = (
    Case(
        "AdamW 8-bit with stochastic rounding, four matrices",
        make,
        {NEAREST: 1 / 1.2},
        "at most 20% on top: a ratio of at least 0.83",
    ),
)
