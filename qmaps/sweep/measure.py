"""Measuring the quantizers of a sweep on one parameter."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
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
from qmaps.sweep.chunks import in_chunks, quantizers_of
from qmaps.sweep.measure_chunks import Found, measured_in_chunks, places
from qmaps.sweep.state import State

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
    """Yield the rows of one parameter; every quantizer encodes a state once, or a chunk of it.

    Args:
        states: the states that hold the parameter.
        parameter: its name.
        names: its states that are measured.
        specs: quantizers to measure alone, and pairs for parameters with `MOMENTS`.
        earlier: specs whose rows exist already; what they say of states is not repeated.

    Returns:
        An iterator over rows as `qmaps.sweep.run` has them.
    """
    shapes = {name: states.shape(parameter, name) for name in names}
    pairs = specs[1] if shapes.keys() >= MOMENTS else ()
    chunked = specs_in_chunks(shapes, specs)
    large = [pair for pair in pairs if pair in chunked]
    rest = [pair for pair in pairs if pair not in chunked]
    # Before a state is read, it may be negative nowhere.
    of_any, of_large, of_rest = (
        wanted_of(dict.fromkeys(names, False), *some) for some in (specs, ((), large), ((), rest))
    )
    opened: dict[str, State] = {}
    if chunked:
        for name in names:
            scaled = [q for q in of_any[name] if q in chunked or q in of_large[name]]
            opened[name] = State.of(states, parameter, name, scaled)
    tensors: dict[str, Tensor] = {}
    if not chunked or rest or any(q not in chunked for name in names for q in of_any[name]):
        tensors = {name: states.tensor(parameter, name) for name in names}
    if chunked:
        negative = {name: state.looks.negative > 0 for name, state in opened.items()}
    else:
        negative = {name: is_negative(tensor) for name, tensor in tensors.items()}
    wanted = wanted_of(negative, *specs)
    known = wanted_of(negative, *earlier)
    eps = states.eps(parameter)
    singles: dict[tuple[str, Quantizer], dict[str, float]] = {}
    updates: dict[Pair, dict[str, float]] = {}
    if tensors:
        own = {
            name: [q for q in each if q not in chunked or q in of_rest[name]]
            for name, each in wanted.items()
        }
        singles, updates = _measured_whole(tensors, own, rest, eps)
        tensors.clear()
    if chunked:
        own = {
            name: [q for q in each if q in chunked and q not in known[name]]
            for name, each in wanted.items()
        }
        found = measured_in_chunks(opened, own, large, eps)
        singles, updates = singles | found[0], updates | found[1]
    for name, shape in shapes.items():
        described = about(states, parameter, name, shape)
        for q in wanted[name]:
            if q not in known[name]:
                of_spec = {"quantizer": q.spec, "first": None, "second": None}
                yield {**described, **of_spec, **singles[name, q]}
    for pair in pairs:
        yield {
            **about(states, parameter, "update", shapes["exp_avg"]),
            "quantizer": pair.spec,
            "first": spec_of(pair.first),
            "second": spec_of(pair.second),
            **updates[pair],
        }


def specs_in_chunks(shapes: Mapping[str, tuple[int, ...]], specs: Specs) -> set[Quantizer | Pair]:
    """The specs, and the quantizers of pairs, that measure a parameter in chunks.

    Args:
        shapes: the shape of each of its states, of which the largest decides.
        specs: quantizers and pairs.
    """
    singles, pairs = specs
    if not shapes.keys() >= MOMENTS:
        pairs = ()
    numel, dims = max((math.prod(shape), len(shape)) for shape in shapes.values())
    every: list[Quantizer | Pair] = [*singles, *pairs]
    every += [q for pair in pairs for q in quantizers_of(pair)]
    return {spec for spec in every if in_chunks(spec, numel, dims)}


def _measured_whole(
    tensors: Mapping[str, Tensor],
    wanted: Mapping[str, Sequence[Quantizer]],
    pairs: Sequence[Pair],
    eps: float,
) -> Found:
    """As `measured_in_chunks`, of states that are in memory."""
    paired = {place for pair in pairs for place in places(pair)}
    frozen = fitted(tensors, wanted)
    moments: dict[tuple[str, Quantizer | None], tuple[Moment, float]] = {}
    singles: dict[tuple[str, Quantizer], dict[str, float]] = {}
    for name, tensor in tensors.items():
        mean_square = mean_square_of(tensor)
        moments[name, None] = (tensor, 32.0)
        work = [(frozen.get((name, q), q), (name, q) in paired) for q in wanted[name]]
        results = dispatch.each(partial(_measured, tensor), work, tensor)
        for q, (measured, moment) in zip(wanted[name], results, strict=True):
            bits = measured.pop("bits_per_element")
            if moment is not None:
                moments[name, q] = (moment, bits)
            singles[name, q] = {"bits_per_element": bits, "mean_square": mean_square, **measured}
    if not pairs:
        return singles, {}
    exact = Exact.of(tensors["exp_avg"], tensors["exp_avg_sq"], eps)
    collectors = _Collectors()

    def columns(pair: Pair) -> dict[str, float]:
        first, first_bits = moments["exp_avg", pair.first]
        second, second_bits = moments["exp_avg_sq", pair.second]
        errors = collectors.errors
        errors.clear()
        errors.add(exact, first, second)
        return {"bits_per_element": (first_bits + second_bits) / 2, **errors.columns()}

    return singles, dict(zip(pairs, dispatch.each(columns, pairs, exact.update), strict=True))


def about(
    states: CapturedStates, parameter: str, state: str, shape: tuple[int, ...]
) -> dict[str, Any]:
    """The columns of a row that say what it is of."""
    return {
        "step": states.step,
        "parameter": parameter,
        "shape": "x".join(map(str, shape)),
        "numel": math.prod(shape),
        "state": state,
    }


def is_negative(tensor: Tensor) -> bool:
    """Whether an element is negative."""
    return bool((tensor < 0).any())


def wanted_of(
    negative: Mapping[str, bool], singles: Sequence[Quantizer], pairs: Sequence[Pair]
) -> dict[str, list[Quantizer]]:
    """The quantizers to measure on each state.

    Args:
        negative: of each state, whether an element is negative.
        singles: quantizers; unsigned ones are left out there.
        pairs: pairs, whose quantizers are measured on the moments if there are both.
    """
    wanted = {
        name: [q for q in singles if q.map.signed or not some] for name, some in negative.items()
    }
    if negative.keys() >= MOMENTS:
        wanted["exp_avg"] += [pair.first for pair in pairs if pair.first]
        wanted["exp_avg_sq"] += [pair.second for pair in pairs if pair.second]
    return {name: list(dict.fromkeys(chosen)) for name, chosen in wanted.items()}


def mean_square_of(tensor: Tensor) -> float:
    """The mean of the squares, by numpy: torch's sums depend on the number of threads."""
    return float(np.square(tensor.numpy().ravel(), dtype=np.float64).mean())


def fitted(
    tensors: Mapping[str, Tensor], wanted: Mapping[str, Sequence[Quantizer]]
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
