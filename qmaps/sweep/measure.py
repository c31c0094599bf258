"""Measuring the quantizers of a sweep on one parameter."""

from __future__ import annotations

import math
import threading
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qmaps.algebra.pair import Pair, spec_of
from qmaps.algebra.quantizer import Quantizer
from qmaps.analyze.update_error import Exact, Moment, OnePass, Reference, collector
from qmaps.capture import CapturedStates
from qmaps.maps.fitted import FittedMap
from qmaps.normalize.base import Normalizer
from qmaps.ops import dispatch
from qmaps.ops.fit import fit_each, fit_normalized

MOMENTS = {"exp_avg", "exp_avg_sq"}

FIT = 2**24
"""Elements that maps are fitted to, about, if the fit needs much memory for each (Lloyd-Max)."""
PIECE = 2**16
"""Elements of each piece of a larger tensor that they are fitted to."""

Specs = tuple[Sequence[Quantizer], Sequence[Pair]]
"""Quantizers that are measured alone, and pairs."""


Place = tuple[str, Quantizer | None]
"""A state, and the quantizer that it is stored with; None for 32 bits."""


def places(pair: Pair) -> tuple[Place, Place]:
    """The moments of a pair, each with its quantizer."""
    return ("exp_avg", pair.first), ("exp_avg_sq", pair.second)


def quantizers_of(singles: Sequence[Quantizer], pairs: Sequence[Pair]) -> list[Quantizer]:
    """All quantizers of some specs, each once."""
    moments = (q for pair in pairs for q in (pair.first, pair.second) if q is not None)
    return list(dict.fromkeys([*singles, *moments]))


def rows(
    states: CapturedStates,
    parameter: str,
    names: Sequence[str],
    specs: Specs,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of one parameter; every quantizer encodes a state once.

    Pairs are measured on parameters with `MOMENTS`.
    """
    tensors = {name: states.tensor(parameter, name) for name in names}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    pairs = specs[1] if shapes.keys() >= MOMENTS else ()
    negative = {name: bool((tensor < 0).any()) for name, tensor in tensors.items()}
    wanted = wanted_of(negative, *specs)
    singles, updates = _measured(tensors, wanted, pairs, states.eps(parameter))
    for name, shape in shapes.items():
        for q in wanted[name]:
            yield {**about(states, parameter, name, shape, q), **singles[name, q]}
    for pair in pairs:
        described = about(states, parameter, "update", shapes["exp_avg"], pair)
        yield {**described, **updates[pair]}


def _measured(
    tensors: Mapping[str, Tensor],
    wanted: Mapping[str, Sequence[Quantizer]],
    pairs: Sequence[Pair],
    eps: float,
) -> tuple[dict[tuple[str, Quantizer], dict[str, float]], dict[Pair, dict[str, float]]]:
    """Metrics by state and quantizer, and by pair."""
    paired = {place for pair in pairs for place in places(pair)}
    frozen = fitted(tensors, wanted)
    moments: dict[Place, tuple[Moment, float]] = {}
    singles: dict[tuple[str, Quantizer], dict[str, float]] = {}
    for name, tensor in tensors.items():
        # By numpy: torch's sums depend on the number of threads.
        mean_square = float(np.square(tensor.numpy().ravel(), dtype=np.float64).mean())
        moments[name, None] = (tensor, 32.0)
        work = [(frozen.get((name, q), q), (name, q) in paired) for q in wanted[name]]
        results = dispatch.each(partial(_encoded, tensor), work, tensor)
        for q, (measured, moment) in zip(wanted[name], results, strict=True):
            bits = measured.pop("bits_per_element")
            if moment is not None:
                moments[name, q] = (moment, bits)
            singles[name, q] = {"bits_per_element": bits, "mean_square": mean_square, **measured}
    if not pairs:
        return singles, {}
    exact = Exact.of(tensors["exp_avg"], tensors["exp_avg_sq"], eps)
    collectors = threading.local()  # one for each thread

    def columns(pair: Pair) -> dict[str, float]:
        first, first_bits = moments["exp_avg", pair.first]
        second, second_bits = moments["exp_avg_sq", pair.second]
        if not hasattr(collectors, "errors"):
            collectors.errors = collector(exact.update)
        errors: Reference | OnePass = collectors.errors
        errors.clear()
        errors.add(exact, first, second)
        return {"bits_per_element": (first_bits + second_bits) / 2, **errors.columns()}

    return singles, dict(zip(pairs, dispatch.each(columns, pairs, exact.update), strict=True))


def about(
    states: CapturedStates,
    parameter: str,
    state: str,
    shape: tuple[int, ...],
    spec: Quantizer | Pair,
) -> dict[str, Any]:
    """The columns of a row that identify its state, and its quantizer or pair."""
    pair = spec if isinstance(spec, Pair) else None
    return {
        "step": states.step,
        "parameter": parameter,
        "shape": "x".join(map(str, shape)),
        "numel": math.prod(shape),
        "state": state,
        "quantizer": spec.spec,
        "first": pair and spec_of(pair.first),
        "second": pair and spec_of(pair.second),
    }


def wanted_of(
    negative: Mapping[str, bool], singles: Sequence[Quantizer], pairs: Sequence[Pair]
) -> dict[str, list[Quantizer]]:
    """The quantizers to measure on each state, by whether it has negative elements.

    Those of pairs are measured on the moments if there are both.
    """
    wanted = {
        name: [q for q in singles if q.map.signed or not has_negative]
        for name, has_negative in negative.items()
    }
    if negative.keys() >= MOMENTS:
        wanted["exp_avg"] += [pair.first for pair in pairs if pair.first]
        wanted["exp_avg_sq"] += [pair.second for pair in pairs if pair.second]
    return {name: list(dict.fromkeys(chosen)) for name, chosen in wanted.items()}


def fitted(
    tensors: Mapping[str, Tensor], wanted: Mapping[str, Sequence[Quantizer]]
) -> dict[tuple[str, Quantizer], Quantizer]:
    """Quantizers with fitted maps, frozen; those of one normalizer share the work."""
    groups: dict[tuple[str, Normalizer], list[Quantizer]] = {}
    for name, chosen in wanted.items():
        for q in chosen:
            if isinstance(q.map, FittedMap):
                groups.setdefault((name, q.normalizer), []).append(q)

    def fit(group: tuple[str, Normalizer]) -> dict[tuple[str, Quantizer], Quantizer]:
        name, normalizer = group
        frozen = _fit(groups[group], normalizer, tensors[name])
        return {(name, q): f for q, f in zip(groups[group], frozen, strict=True)}

    return dict(ChainMap(*dispatch.each(fit, list(groups), *tensors.values())))


def _fit(quantizers: Sequence[Quantizer], normalizer: Normalizer, x: Tensor) -> list[Quantizer]:
    """Fit maps to a tensor; Lloyd-Max maps, which take much memory, to pieces of a large one."""
    heavy = [q for q in quantizers if isinstance(q.map, FittedMap) and q.map.weighted]
    if x.numel() <= FIT or not heavy:
        return fit_each(quantizers, x)
    scales = normalizer.scales(x)
    normalized_and_scale = (
        normalizer.normalize(x, scales),
        normalizer.expand(scales, tuple(x.shape)).expand(x.shape),
    )
    # Spread evenly over the tensor.
    begins = [n * (x.numel() - PIECE) // (FIT // PIECE - 1) for n in range(FIT // PIECE)]
    n, scale = (
        torch.cat([t.reshape(-1)[b : b + PIECE] for b in begins]) for t in normalized_and_scale
    )
    frozen = dict(zip(heavy, fit_normalized(heavy, n, scale), strict=True))
    light = [q for q in quantizers if q not in frozen]
    if light:
        frozen |= dict(zip(light, fit_each(light, x), strict=True))
    return [frozen[q] for q in quantizers]


def _encoded(
    tensor: Tensor, work: tuple[Quantizer, bool]
) -> tuple[dict[str, float], Moment | None]:
    q, keep = work
    return q.measured(tensor, keep=keep)
