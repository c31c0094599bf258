"""Samples of an optimizer's states over the steps of a window."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.capture.monitor import sample
from qmaps.capture.monitor.measures import MOMENTS, decay_of, of_moments, of_states
from qmaps.capture.monitor.sample import Places
from qmaps.engines.bfloat16 import join
from qmaps.engines.masters import MASTER, REMAINDER
from qmaps.engines.sharding.shards import local
from qmaps.optim.base import QuantizedOptimizer
from qmaps.optim.rule import UpdateRule

Values = dict[str, Tensor]
"""States of sampled elements by name, float32."""


class Exact:
    """The exact states of several parameters' samples, stepped together.

    The optimizer's own rule steps them in float32, as its reference does, but the states are never
    encoded in between. `param` and `states`, the sampled float32 values after the first `steps`
    steps, are changed.
    """

    def __init__(
        self,
        optimizer: QuantizedOptimizer,
        group: dict[str, Any],
        steps: int,
        param: Tensor,
        states: Values,
    ) -> None:
        self._optimizer, self._group, self._taken = optimizer, group, steps
        self._param, self._states = param, states
        self._pending: list[tuple[Tensor, dict[str, float]]] = []

    def step(self, gradient: Tensor) -> None:
        """Take one step with the elements' gradient, float32 and not scaled.

        The rule is applied when the states are asked for: many steps in a row take less time than
        one after each step of the training, with the caches full of other data.
        """
        self._taken += 1
        exact = self._optimizer.scalars(self._group, self._taken)
        rounded = torch.tensor(list(exact.values()), dtype=torch.float64).float().tolist()
        self._pending.append((gradient, dict(zip(exact, rounded, strict=True))))

    @torch.no_grad()
    def states(self) -> Values:
        """The states after the steps so far, on the CPU."""
        for gradient, scalars in self._pending:
            self._optimizer.update(self._param, gradient, self._states, scalars)
        self._pending.clear()
        return {name: value.cpu() for name, value in self._states.items()}


Row = dict[str, Any]
"""A state at one step: `parameter`, `state`, `quantizer`, and its `SUMS`."""


@dataclass(eq=False)
class Watched:
    """A parameter with quantized states, and their rows.

    `names` are the states of its rule, `at` the sampled elements of its moments, `quantized` those
    of each quantized state, and `steps_before` its steps before the window. It is `is_exact` if its
    rule steps each element by itself, and `lost` without a gradient in a step of the window: it is
    not measured then.
    """

    label: str
    parameter: Tensor
    group: dict[str, Any]
    state: Mapping[str, Any]
    names: tuple[str, ...]
    at: Places
    quantized: dict[str, Places]
    steps_before: int
    is_exact: bool
    rows: dict[str, Row] = field(default_factory=dict)
    lost: bool = False

    @property
    def kind(self) -> Hashable:
        """Equal for parameters that are stepped together."""
        kinds = tuple((name, sample.kind(self.state[name])) for name in self.quantized)
        device, group = self.parameter.device, id(self.group)
        return group, self.steps_before, device, self.names, self.is_exact, kinds


@dataclass(eq=False)
class Batch:
    """Parameters of one kind; their samples are stepped together.

    `first` are the samples of their quantized states at the start of the window, `drifting` their
    exact states from there on, None if their rule is not element-wise, and `last` those of the last
    step alone, None before it.
    """

    watched: list[Watched]
    first: dict[str, QuantizedTensor]
    drifting: Exact | None
    last: Exact | None = None


class Window:
    """Watches samples of quantized states over a few steps and measures the last.

    It begins before the first of these steps, for the chosen names, parameters and groups.
    Parameters without a quantized state are left out, also those without any state yet.
    """

    def __init__(
        self,
        optimizer: QuantizedOptimizer,
        chosen: Iterable[tuple[str, Tensor, dict[str, Any]]],
        size: int,
    ) -> None:
        self._optimizer = optimizer
        self._steps = 0
        watched = (_watched(optimizer, *entry, size) for entry in chosen)
        self._watched = [member for member in watched if member is not None]
        together: dict[Hashable, list[Watched]] = defaultdict(list)
        for member in self._watched:
            together[member.kind].append(member)
        self._batches: list[Batch] = []
        for members in together.values():
            first = _joined(members)
            self._batches.append(Batch(members, first, self._exact(members, first)))

    def before_last(self) -> None:
        """Look at the states before the measured step."""
        for batch in self._batches:
            if batch.drifting is not None:
                batch.last = self._exact(batch.watched, _joined(batch.watched))

    def after_step(self) -> None:
        """Take the gradients of the optimizer's last step."""
        self._steps += 1
        scale = getattr(self._optimizer, "grad_scale", None)
        for member in self._watched:
            member.lost |= member.parameter.grad is None
        for batch in self._batches:
            if batch.drifting is None:
                continue
            gradient = torch.cat([_gradient(member) for member in batch.watched])
            gradient = gradient if scale is None else gradient / scale.to(gradient)
            batch.drifting.step(gradient)
            if batch.last is not None:
                batch.last.step(gradient)

    def rows(self) -> list[Row]:
        """Return the sums of the last step: a row for each quantized state."""
        for batch in self._batches:
            x, y = (
                {} if stepped is None else stepped.states()
                for stepped in (batch.drifting, batch.last)
            )
            decoded = {
                name: _measure(
                    batch.watched, name, first, x.get(name), y.get(name), steps=self._steps
                )
                for name, first in batch.first.items()
            }
            moments = set(MOMENTS)
            if moments <= set(batch.watched[0].names) and moments & decoded.keys():
                _measure_moments(batch.watched, decoded, y or None, self._steps)
        return [
            row for member in self._watched if self._stepped(member) for row in member.rows.values()
        ]

    def _stepped(self, member: Watched) -> bool:
        """Return True if the optimizer stepped this parameter in every step of the window."""
        return not member.lost and int(member.state["step"]) == member.steps_before + self._steps

    def _exact(
        self, members: list[Watched], quantized: Mapping[str, QuantizedTensor]
    ) -> Exact | None:
        """Exact states, begun from those of the optimizer now; None if the rule has none."""
        first = members[0]
        if not first.is_exact:
            return None
        states = {
            name: quantized[name].dequantize()
            if name in quantized
            else torch.cat([sample.values(e.state[name], e.at) for e in members])
            for name in first.names
        }
        param = torch.cat([_values(e) for e in members])
        steps = first.steps_before + self._steps
        return Exact(self._optimizer, first.group, steps, param, states)


def _values(e: Watched) -> Tensor:
    """The sampled values of a parameter, those of its master weights if it has some."""
    if REMAINDER not in e.state:
        return sample.values(e.state.get(MASTER, e.parameter), e.at)
    param, remainder = local(e.parameter).detach(), e.state[REMAINDER]
    return join(param.take(e.at.index), remainder.take(e.at.index))


def _watched(
    optimizer: QuantizedOptimizer, label: str, parameter: Tensor, group: dict[str, Any], size: int
) -> Watched | None:
    """Return the `Watched` of a parameter; None if none of its states is quantized now."""
    state = optimizer.state.get(parameter)
    if not isinstance(state, Mapping) or "step" not in state:
        return None
    quantized = {
        name: sample.places(torch.Size(value.shape).numel(), size, value.device)
        for name, value in state.items()
        if isinstance(value, QuantizedTensor)
    }
    quantized = {name: places for name, places in quantized.items() if len(places)}
    if not quantized:
        return None
    # The owner of a sharded parameter may have the moments whole, and APOLLO's are smaller.
    shard = local(parameter)
    sampled = state.get(MOMENTS[0], shard)
    at = sample.places(torch.Size(sampled.shape).numel(), size, shard.device)
    shapes = optimizer.state_shapes(parameter, group)
    is_exact = (
        type(optimizer).advance is UpdateRule.advance
        and not optimizer.takes_norms
        and all(tuple(shape) == tuple(parameter.shape) for shape in shapes.values())
    )
    steps = int(state["step"])
    return Watched(label, parameter, group, state, tuple(shapes), at, quantized, steps, is_exact)


def _joined(members: Sequence[Watched]) -> dict[str, QuantizedTensor]:
    """The samples of each quantized state now, without states of several kinds by now."""
    return {
        name: _joined_state(members, name)
        for name in members[0].quantized
        if len({sample.kind(e.state[name]) for e in members}) == 1
    }


def _joined_state(members: Sequence[Watched], name: str) -> QuantizedTensor:
    return sample.joined([(e.state[name], e.quantized[name]) for e in members])


def _measure(
    members: Sequence[Watched],
    name: str,
    first: QuantizedTensor | None,
    x: Tensor | None,
    y: Tensor | None,
    *,
    steps: int,
) -> Tensor:
    """Measure a state of parameters that were of one kind, and return the decoded samples."""
    sizes = [len(e.quantized[name]) for e in members]
    kind, *others = (sample.kind(e.state[name]) for e in members)
    if any(other != kind for other in others):  # some maps were fitted again
        nothing = [None] * len(sizes)
        parts = zip(
            members,
            nothing if first is None else sample.split(first, sizes),
            *(nothing if z is None else torch.split(z, sizes) for z in (x, y)),
            strict=True,
        )
        return torch.cat([_measure([e], name, *samples, steps=steps) for e, *samples in parts])
    last = _joined_state(members, name).to("cpu")
    if first is not None:
        first = first.to("cpu") if sample.kind(first) == kind else None
    decay = decay_of(name, members[0].group, members[0].names)
    window = None if decay is None else (decay, steps)
    sums = of_states(first, last, x, y, sizes, window)
    # Parameters share their quantizers, and a spec takes long to write.
    quantizers = [e.state[name].quantizer for e in members]
    specs = {id(q): q.spec for q in {id(q): q for q in quantizers}.values()}
    for member, q, state_sums in zip(members, quantizers, sums, strict=True):
        row = {"parameter": member.label, "state": name, "quantizer": specs[id(q)]}
        member.rows[name] = {**row, **state_sums}
    return last.dequantize()


def _measure_moments(
    members: Sequence[Watched], decoded: Values, exact: Values | None, steps: int
) -> None:
    """Add the sums of both moments of Adam to the rows of parameters of one kind."""
    m, v = (
        decoded[name]
        if name in decoded
        else torch.cat([sample.values(e.state[name], e.at) for e in members]).cpu()
        for name in MOMENTS
    )
    first, sizes = members[0], [len(e.at) for e in members]
    sums = of_moments(m, v, exact, first.group, first.steps_before + steps, sizes)
    for member, moment_sums in zip(members, sums, strict=True):
        member.rows[[name for name in MOMENTS if name in member.rows][-1]].update(moment_sums)


def _gradient(member: Watched) -> Tensor:
    gradient = member.parameter.grad
    if gradient is None:
        return member.at.index.new_zeros(len(member.at), dtype=torch.float32)
    return sample.values(gradient, member.at)
