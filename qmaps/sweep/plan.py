"""The items of a sweep: what can be measured by itself, by any process that can read the states."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pandas as pd

from qmaps.algebra.pair import Pair, listed
from qmaps.algebra.quantizer import Quantizer, quantizer
from qmaps.analyze import executors
from qmaps.analyze._states import MIN_SIZE, States, as_states, opened
from qmaps.capture import CapturedStates
from qmaps.errors import CaptureError
from qmaps.maps.codebook import Codebook
from qmaps.optim.presets import PRESETS, pair_of
from qmaps.sweep.divide import MEMORY, divided
from qmaps.sweep.given import bytes_of, share_of
from qmaps.sweep.identity import digest_of
from qmaps.sweep.measure import MOMENTS, Specs, quantizers_of, rows
from qmaps.sweep.sample import sampled_rows
from qmaps.sweep.units import share_of_large

Spec = str | Quantizer | Pair | tuple[str | Quantizer | None, str | Quantizer | None]


@dataclass(frozen=True)
class Item:
    """A parameter of a sweep, with all specs or with some. It is small; workers read the states.

    Attributes:
        number: its place in the sweep, from 0 on; parts are named by it.
        source: the file or folder of the states; empty for states in memory.
        position: the parameter's place among those of the source.
        parameter: its name.
        states: names of the states that are measured.
        numel: number of elements of the largest of them.
        singles: quantizers that the sweep measures alone.
        pairs: quantizers of both moments that it measures.
        part: of a parameter that is divided, which of the specs, singles first, the item measures:
            from the first number on, up to and without the second. None for all of them.
        sweep: digest of the sweep that the item is of; empty where nothing is written.
        sample: the share of the parameter that is measured; None for all of it.
    """

    number: int
    source: str
    position: int
    parameter: str
    states: tuple[str, ...]
    numel: int
    singles: tuple[Quantizer, ...] = field(repr=False)
    pairs: tuple[Pair, ...] = field(repr=False)
    part: tuple[int, int] | None = None
    sweep: str = ""
    sample: float | None = None

    @property
    def digest(self) -> str:
        """A SHA-256 that tells the item from those of other sweeps and from others of its own."""
        return hashlib.sha256(f"{self.sweep}:{self.number}".encode()).hexdigest()

    @property
    def work(self) -> int:
        """Elements times specs that are measured, by which items are compared."""
        begin, end = self.part or (0, len(self.singles) + len(self.pairs))
        return self.numel * max(1, end - begin)

    def measure(self, states: CapturedStates | None = None) -> pd.DataFrame:
        """Measure the item in this process.

        Args:
            states: the states, if they are open already; by default they are read from `source`.

        Returns:
            The rows of `qmaps.sweep.run` for this parameter. Of a divided one, those that no
            earlier item of it has.

        Raises:
            CaptureError: the states cannot be read, or hold NaN or infinity.
        """
        name = self.parameter
        if states is None:
            states = opened(self.source)
            name = states.parameters()[self.position]  # names may have been given by the caller
        found = None
        if self.sample is not None:
            every = self.singles, self.pairs
            found = sampled_rows(states, name, self.states, self.sample, every, *self._specs())
        if found is None:
            found = rows(states, name, self.states, *self._specs())
        return pd.DataFrame([{**row, "parameter": self.parameter} for row in found])

    def _specs(self) -> tuple[Specs, Specs]:
        """The specs that this item measures, and those of earlier items of the parameter."""
        count = len(self.singles)
        begin, end = self.part or (0, count + len(self.pairs))
        return (
            (self.singles[begin:end], self.pairs[max(0, begin - count) : max(0, end - count)]),
            (self.singles[:begin], self.pairs[: max(0, begin - count)]),
        )


def plan(
    states: States,
    specs: Spec | Iterable[Spec],
    *,
    min_quantized_size: int = MIN_SIZE,
    codebooks: Iterable[Codebook] = (),
    sample: float | str | None = None,
    memory: int | str | None = MEMORY,
) -> list[Item]:
    """Divide a sweep into items that any process can measure by itself.

    The items depend on the arguments alone. The specs of a large parameter are divided among
    several items (`qmaps.sweep.divide`). The rows of `qmaps.sweep.run` are those of
    the items in their order, whoever measures them.

    Args:
        states: captured states, their path, or tensors by parameter and state name. Only items
            of states with a path can be measured by other processes.
        specs: quantizers and pairs, as for `qmaps.sweep.run`; or one of them.
        min_quantized_size: parameters of at most this many elements are left out.
        codebooks: codebooks of the caller's own that the specs name.
        sample: the share of each tensor to measure, as for `qmaps.sweep.run`.
        memory: bytes that a worker may use, as for `qmaps.sweep.run`.

    Returns:
        The items, those of a parameter side by side, in the order of the states.

    Raises:
        SpecError: a spec does not parse.
        CaptureError: there are no states, none is large enough, or a pair is given and no
            parameter has both moments.
        BadValueError: `sample` is not above 0 and at most 1, or `memory` is not enough for a
            parameter.

    >>> import torch
    >>> states = {"weight": {"exp_avg": torch.randn(100, 100)}}
    >>> [item] = plan(states, ["B128/DE@4s", "B128/linear@4s"])
    >>> item.parameter, item.states, item.numel
    ('weight', ('exp_avg',), 10000)
    >>> item.measure(as_states(states))["quantizer"].tolist()
    ['B128/DE@4s', 'B128/linear@4s']
    """
    captured = as_states(states)
    items = items_of(captured, specs, min_quantized_size, tuple(codebooks), sample, memory)
    return identified(items, captured, min_quantized_size)


def items_of(
    states: CapturedStates,
    specs: Spec | Iterable[Spec],
    min_quantized_size: int,
    codebooks: tuple[Codebook, ...],
    sample: float | str | None,
    memory: int | str | None,
) -> list[Item]:
    """The items of `plan` without the digest of the sweep, for which states may have to be read."""
    share = None if sample is None else share_of(sample)
    limit = bytes_of(memory)
    singles, pairs = _parse(specs, codebooks)
    chosen = _parameters(states, min_quantized_size)
    if pairs:
        _require_adam(chosen, states)
    source = executors.source_of(states)
    positions = {name: position for position, name in enumerate(states.parameters())}
    items: list[Item] = []
    for parameter, names in chosen.items():
        shapes = {name: states.shape(parameter, name) for name in names}
        numel = max(map(math.prod, shapes.values()))
        own = share
        if own is None:
            largest = max(shapes.values(), key=math.prod)
            own = share_of_large(largest, quantizers_of(singles, pairs))
        in_parts = all(states.in_parts(parameter, name) for name in names)
        for part in divided(parameter, shapes, (singles, pairs), limit, in_parts, own):
            where = (len(items), source, positions[parameter], parameter)
            items.append(Item(*where, names, numel, singles, pairs, part, sample=own))
    return items


def identified(items: list[Item], states: CapturedStates, min_quantized_size: int) -> list[Item]:
    """The items with the digest of their sweep: specs, sizes, and what the states hold."""
    about = {
        "specs": specs_of(items),
        "step": states.step,
        "parameters": {
            name: {s: list(states.shape(name, s)) for s in states.states(name)}
            for name in states.parameters()
        },
        "min_quantized_size": min_quantized_size,
        "states": digest_of(states),
    }
    if shares := [item.sample for item in items if item.sample is not None]:
        about["sample"] = shares[0]
    given = [*items[0].singles, *(q for pair in items[0].pairs for q in (pair.first, pair.second))]
    if books := [repr(q.map) for q in given if q is not None and isinstance(q.map, Codebook)]:
        about["codebooks"] = books  # of which a spec has the label alone
    if any(item.part for item in items):
        about["parts"] = [(item.parameter, item.part) for item in items]
    text = json.dumps(about, sort_keys=True)
    sweep = hashlib.sha256(text.encode()).hexdigest()
    return [replace(item, sweep=sweep) for item in items]


def specs_of(items: list[Item]) -> list[str]:
    """The specs of a sweep, of which there is at least one item."""
    return [str(q) for q in (*items[0].singles, *items[0].pairs)]


def _parse(
    specs: Spec | Iterable[Spec], codebooks: tuple[Codebook, ...]
) -> tuple[tuple[Quantizer, ...], tuple[Pair, ...]]:
    singles: list[Quantizer] = []
    pairs: list[Pair] = []
    for spec in listed(specs):
        if isinstance(spec, Quantizer):
            singles.append(spec)
        elif isinstance(spec, str) and " + " not in spec and spec not in PRESETS:
            singles.append(quantizer(spec, codebooks))
        else:
            pairs.append(pair_of(spec, codebooks))
    return tuple(dict.fromkeys(singles)), tuple(dict.fromkeys(pairs))


def _parameters(states: CapturedStates, min_quantized_size: int) -> dict[str, tuple[str, ...]]:
    """State names of each parameter that is large enough."""
    chosen = {}
    for parameter in states.parameters():
        names = tuple(
            name
            for name in states.states(parameter)
            if math.prod(states.shape(parameter, name)) > min_quantized_size
        )
        if names:
            chosen[parameter] = names
    if not chosen:
        raise CaptureError(
            f"no state has more than min_quantized_size={min_quantized_size} elements, so there is "
            "nothing to quantize"
        )
    return chosen


def _require_adam(by_parameter: dict[str, tuple[str, ...]], states: CapturedStates) -> None:
    """Raise if no parameter that is large enough has both moments."""
    if not any(set(names) >= MOMENTS for names in by_parameter.values()):
        next(states.adam_pairs())  # raises an error that lists the states if no parameter has both
        raise CaptureError(
            "no parameter with both exp_avg and exp_avg_sq is large enough to be quantized"
        )
