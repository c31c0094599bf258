"""The rows of one parameter: its moments replayed under every quantizer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain
from typing import Any

from qmaps.algebra.pair import Pair, spec_of
from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.quantizer import Quantizer
from qmaps.analyze.replay.recursion import Recursion, exact_measures
from qmaps.analyze.replay.source import Source
from qmaps.analyze.replay.updates import Updates

CHECKS = 5
"""Steps at which codes are looked at; the last is one of them."""


def rows(step: int, data: Source, pairs: list[Pair], seed: int) -> list[dict[str, Any]]:
    """The rows of one parameter."""
    chosen, first, second, updates = recursions(data, pairs, seed)
    for _ in replayed(data, first, second, updates):
        pass
    measured: list[dict[Quantizer | None, dict[str, float]]] = [
        {None: exact_measures(beta), **dict(zip(quantizers, recursion.measures(), strict=True))}
        for beta, quantizers, recursion in zip(data.betas, chosen, (first, second), strict=True)
    ]
    return [
        {
            "step": step,
            "parameter": data.parameter,
            "shape": "x".join(map(str, data.shape)),
            "numel": data.m.numel(),
            "steps": data.steps,
            "gradients": data.kind,
            "quantizer": pair.spec,
            "first": spec_of(pair.first),
            "second": spec_of(pair.second),
            "bits_per_element": (_bits(pair.first, data) + _bits(pair.second, data)) / 2,
            **of_updates,
            **{f"{name}_first": value for name, value in measured[0][pair.first].items()},
            **{f"{name}_second": value for name, value in measured[1][pair.second].items()},
        }
        for pair, of_updates in zip(pairs, updates.measures(), strict=True)
    ]


def recursions(
    data: Source, pairs: list[Pair], seed: int
) -> tuple[list[list[Quantizer]], Recursion, Recursion, Updates]:
    """The quantizers of each moment, the recursions of both under them, and the pairs' updates."""
    chosen = [
        list(dict.fromkeys(q for q in quantizers if q is not None))
        for quantizers in zip(*((pair.first, pair.second) for pair in pairs), strict=True)
    ]
    first, second = (
        Recursion(start, quantizers, beta, RoundingKey(seed=seed, tensor=data.number, state=state))
        for state, (start, quantizers, beta) in enumerate(
            zip((data.m, data.v), chosen, data.betas, strict=True)
        )
    )
    places: list[dict[Quantizer | None, int]] = [
        {None: 0, **{q: row for row, q in enumerate(qs, start=1)}} for qs in chosen
    ]
    updates = Updates(
        [(places[0][pair.first], places[1][pair.second]) for pair in pairs],
        data.betas,
        data.eps,
        data.m.numel(),
    )
    return chosen, first, second, updates


def replayed(data: Source, first: Recursion, second: Recursion, updates: Updates) -> Iterator[int]:
    """Take every step and yield its number; it is measured if there is a next gradient."""
    looked = {-(-number * data.steps // CHECKS) for number in range(1, CHECKS + 1)}
    flat = (gradient.reshape(-1) for gradient in data.gradients())
    gradient = next(flat)
    for number, following in enumerate(chain(flat, [None]), start=1):
        step, check = data.taken + number, number in looked
        first.advance(gradient, step, check=check)
        second.advance(gradient * gradient, step, check=check)
        if check:
            updates.check(first.after, second.after)
        if following is not None:
            updates.add(first.before, second.before, following, step)
            gradient = following
            yield number


def _bits(q: Quantizer | None, data: Source) -> float:
    return 32.0 if q is None else 8 * q.nbytes(data.shape) / math.prod(data.shape)
