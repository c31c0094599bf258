"""Measuring the quantizers of a sweep on one parameter."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from qmaps.algebra.pair import Pair, spec_of
from qmaps.algebra.quantizer import Quantizer, fit_each
from qmaps.analyze._updates import Exact, Moment, UpdateErrors
from qmaps.capture import CapturedStates
from qmaps.engines import dispatch
from qmaps.maps.fitted import FittedMap
from qmaps.normalize.base import Normalizer

MOMENTS = {"exp_avg", "exp_avg_sq"}

Specs = tuple[Sequence[Quantizer], Sequence[Pair]]
"""Quantizers that are measured alone, and pairs."""


def rows(
    states: CapturedStates,
    parameter: str,
    names: Sequence[str],
    specs: Specs,
    earlier: Specs = ((), ()),
) -> Iterator[dict[str, Any]]:
    """Yield the rows of one parameter; every quantizer encodes a state once.

    Args:
        states: the states that hold the parameter.
        parameter: its name.
        names: its states that are measured.
        specs: quantizers to measure alone, and pairs for parameters with `MOMENTS`.
        earlier: specs whose rows exist already; what they say of states is not repeated.

    Returns:
        An iterator over rows as `qmaps.sweep.run` has them.
    """
    tensors = {name: states.tensor(parameter, name) for name in names}
    _, pairs = specs
    wanted, paired = wanted_of(tensors, *specs)
    known, _ = wanted_of(tensors, *earlier)
    frozen = fitted(tensors, wanted)
    moments: dict[tuple[str, Quantizer | None], tuple[Moment, float]] = {}
    for name, tensor in tensors.items():
        described = about(states, parameter, name, tensor)
        mean_square = mean_square_of(tensor)
        moments[name, None] = (tensor, 32.0)
        work = [(frozen.get((name, q), q), (name, q) in paired) for q in wanted[name]]
        results = dispatch.each(partial(_measured, tensor), work, tensor)
        for q, (measured, moment) in zip(wanted[name], results, strict=True):
            bits = measured.pop("bits_per_element")
            if moment is not None:
                moments[name, q] = (moment, bits)
            if q in known[name]:
                continue
            yield {
                **described,
                "quantizer": q.spec,
                "first": None,
                "second": None,
                "bits_per_element": bits,
                "mean_square": mean_square,
                **measured,
            }
    if not (tensors.keys() >= MOMENTS and pairs):
        return
    exact = Exact.of(tensors["exp_avg"], tensors["exp_avg_sq"], states.eps(parameter))
    collectors = _Collectors()

    def columns(pair: Pair) -> dict[str, float]:
        errors = collectors.errors
        errors.clear()
        errors.add(exact, moments["exp_avg", pair.first][0], moments["exp_avg_sq", pair.second][0])
        return errors.columns()

    for pair, found in zip(pairs, dispatch.each(columns, pairs, exact.update), strict=True):
        first_bits, second_bits = (
            moments["exp_avg", pair.first][1],
            moments["exp_avg_sq", pair.second][1],
        )
        yield {
            **described,
            "state": "update",
            "quantizer": pair.spec,
            "first": spec_of(pair.first),
            "second": spec_of(pair.second),
            "bits_per_element": (first_bits + second_bits) / 2,
            **found,
        }


def about(states: CapturedStates, parameter: str, state: str, tensor: Tensor) -> dict[str, Any]:
    """The columns of a row that say what it is of."""
    return {
        "step": states.step,
        "parameter": parameter,
        "shape": "x".join(map(str, tensor.shape)),
        "numel": tensor.numel(),
        "state": state,
    }


def wanted_of(
    tensors: dict[str, Tensor], singles: Sequence[Quantizer], pairs: Sequence[Pair]
) -> tuple[dict[str, list[Quantizer]], set[tuple[str, Quantizer | None]]]:
    """The quantizers to measure on each state, and which of them pairs need."""
    wanted = {
        name: [q for q in singles if q.map.signed or not bool((tensor < 0).any())]
        for name, tensor in tensors.items()
    }
    paired: set[tuple[str, Quantizer | None]] = set()
    if tensors.keys() >= MOMENTS:
        for pair in pairs:
            paired |= {("exp_avg", pair.first), ("exp_avg_sq", pair.second)}
        wanted["exp_avg"] += [pair.first for pair in pairs if pair.first]
        wanted["exp_avg_sq"] += [pair.second for pair in pairs if pair.second]
    return {name: list(dict.fromkeys(chosen)) for name, chosen in wanted.items()}, paired


def mean_square_of(tensor: Tensor) -> float:
    """The mean of the squares, by numpy: torch's sums depend on the number of threads."""
    return float(np.square(tensor.numpy().ravel(), dtype=np.float64).mean())


def fitted(
    tensors: dict[str, Tensor], wanted: dict[str, list[Quantizer]]
) -> dict[tuple[str, Quantizer], Quantizer]:
    """Quantizers with fitted maps, frozen; those of one normalizer share the work."""
    groups: dict[tuple[str, Normalizer], list[Quantizer]] = {}
    for name, chosen in wanted.items():
        for q in chosen:
            if isinstance(q.map, FittedMap):
                groups.setdefault((name, q.normalizer), []).append(q)

    def fit(group: tuple[str, Normalizer]) -> list[Quantizer]:
        return fit_each(groups[group], tensors[group[0]])

    return {
        (group[0], q): found
        for group, results in zip(
            groups, dispatch.each(fit, list(groups), *tensors.values()), strict=True
        )
        for q, found in zip(groups[group], results, strict=True)
    }


class _Collectors(threading.local):
    """A collector for each thread."""

    def __init__(self) -> None:
        self.errors = UpdateErrors()


def _measured(
    tensor: Tensor, given: tuple[Quantizer, bool]
) -> tuple[dict[str, float], Moment | None]:
    q, keep = given
    return q.measured(tensor, keep=keep)
