"""Samples of an optimizer's states over the steps of a window."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.capture.monitor import sample
from qmaps.capture.monitor.measures import MOMENTS, of_moments, of_states
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

    `names` are the states of its rule, `at` the sampled elements of its moments, and
    `steps_before` its steps before the window. It is `is_exact` if its rule steps each element by
    itself, and `lost` without a gradient in a step of the window: it is not measured then.
    """

    label: str
    parameter: Tensor
    group: dict[str, Any]
    state: Mapping[str, Any]
    names: tuple[str, ...]
    at: Places
    steps_before: int
    is_exact: bool
    rows: dict[str, Row] = field(default_factory=dict)
    lost: bool = False


@dataclass(eq=False)
class Column:
    """One state of several parameters, with their samples as one quantized tensor.

    `places` are the sampled elements of each member's state, and `first` their values at the start
    of the window, on the states' device.
    """

    state: str
    kind: Hashable
    members: list[Watched]
    places: list[Places]
    first: QuantizedTensor

    @property
    def sizes(self) -> list[int]:
        """Number of elements of each sample."""
        return [len(at) for at in self.places]

    @property
    def keys(self) -> list[tuple[Watched, str]]:
        """Keys of a `Decoded`."""
        return [(member, self.state) for member in self.members]

    def tensors(self) -> list[tuple[QuantizedTensor, Places]]:
        """The states as they are now."""
        now = [member.state[self.state] for member in self.members]
        return list(zip(now, self.places, strict=True))


@dataclass(eq=False)
class Batch:
    """Parameters of one group, step and device; their samples are stepped together.

    `drifting` are their exact states from the start of the window on, None if their rule is not
    element-wise, and `last` those of the last step alone, None before it.
    """

    watched: list[Watched]
    drifting: Exact | None
    last: Exact | None = None


Decoded = dict[tuple[Watched, str], Tensor]
"""Decoded samples by parameter and state."""


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
        self._columns = list(_columns(self._watched, size))
        together: dict[Hashable, list[Watched]] = defaultdict(list)
        for member in self._watched:
            steps, device, exact = member.steps_before, member.parameter.device, member.is_exact
            key = (id(member.group), steps, device, member.names, exact)
            together[key].append(member)
        decoded = self._decoded(column.first for column in self._columns)
        self._batches = [
            Batch(members, self._exact(members, members[0].steps_before, decoded))
            for members in together.values()
        ]

    def before_last(self) -> None:
        """Look at the states before the measured step."""
        decoded = self._decoded(sample.joined(column.tensors()) for column in self._columns)
        for batch in self._batches:
            steps = batch.watched[0].steps_before + self._steps
            batch.last = self._exact(batch.watched, steps, decoded)

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
        drifted, exact, decoded = Decoded(), Decoded(), Decoded()
        for batch in self._batches:
            for values, stepped in ((drifted, batch.drifting), (exact, batch.last)):
                if stepped is not None:
                    values.update(_by_state(batch.watched, stepped.states()))
        for column in self._columns:
            for part in _unchanged(column):
                decoded |= _measure(part, drifted, exact)
        for batch in self._batches:
            _measure_moments(batch, decoded, exact, self._steps)
        return [
            row for member in self._watched if self._stepped(member) for row in member.rows.values()
        ]

    def _stepped(self, member: Watched) -> bool:
        """Return True if the optimizer stepped this parameter in every step of the window."""
        return not member.lost and int(member.state["step"]) == member.steps_before + self._steps

    def _decoded(self, samples: Iterable[QuantizedTensor]) -> Decoded:
        """Return the decoded samples of all columns."""
        decoded = Decoded()
        for column, joined in zip(self._columns, samples, strict=True):
            parts = torch.split(joined.dequantize(), column.sizes)
            decoded.update(zip(column.keys, parts, strict=True))
        return decoded

    def _exact(self, watched: list[Watched], steps: int, decoded: Decoded) -> Exact | None:
        """Exact states, begun from those of the optimizer now; None if the rule has none."""
        first, optimizer = watched[0], self._optimizer
        if not first.is_exact:
            return None
        states = {
            name: torch.cat(
                [
                    decoded[e, name] if (e, name) in decoded else sample.values(e.state[name], e.at)
                    for e in watched
                ]
            )
            for name in first.names
        }
        params = [_values(e) for e in watched]
        return Exact(optimizer, first.group, steps, torch.cat(params), states)


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
    if not any(isinstance(state.get(name), QuantizedTensor) for name in optimizer.state_names):
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
    return Watched(label, parameter, group, state, tuple(shapes), at, steps, is_exact)


def _columns(watched: Sequence[Watched], size: int) -> Iterator[Column]:
    """The quantized states of all parameters, those of one name and kind together."""
    by_kind: dict[tuple[str, Hashable, bool], list[tuple[Watched, Places]]] = defaultdict(list)
    for member in watched:
        for name, value in member.state.items():
            if isinstance(value, QuantizedTensor):
                # A statistic of rows or columns has a size of its own.
                at = sample.places(torch.Size(value.shape).numel(), size, value.device)
                if len(at):
                    by_kind[name, sample.kind(value), member.is_exact].append((member, at))
    for (name, kind, _), members in by_kind.items():
        first = sample.joined([(member.state[name], at) for member, at in members])
        yield Column(name, kind, [e for e, _ in members], [at for _, at in members], first)


def _unchanged(column: Column) -> Iterator[Column]:
    """The column itself; or a column for each of its states, if one has another map by now."""
    now = [member.state.get(column.state) for member in column.members]
    if all(isinstance(t, QuantizedTensor) and sample.kind(t) == column.kind for t in now):
        yield column
        return
    parts = sample.split(column.first, column.sizes)
    for member, at, first, t in zip(column.members, column.places, parts, now, strict=True):
        if isinstance(t, QuantizedTensor):  # otherwise another checkpoint was loaded
            yield Column(column.state, column.kind, [member], [at], first)


def _measure(column: Column, drifted: Decoded, exact: Decoded) -> Decoded:
    """Measure each state of a column, and return the decoded samples."""
    tensors, sizes = column.tensors(), column.sizes
    last = sample.joined(tensors).to("cpu")
    same = sample.kind(tensors[0][0]) == column.kind
    first = column.first.to("cpu") if same else None
    x, y = (
        torch.cat([values[key] for key in column.keys]) if column.keys[0] in values else None
        for values in (drifted, exact)
    )
    sums = of_states(first, last, x, y, sizes)
    # Parameters share their quantizers, and a spec takes long to write.
    specs = {id(q): q.spec for q in {id(t.quantizer): t.quantizer for t, _ in tensors}.values()}
    for member, (t, _), state_sums in zip(column.members, tensors, sums, strict=True):
        row = {
            "parameter": member.label,
            "state": column.state,
            "quantizer": specs[id(t.quantizer)],
        }
        member.rows[column.state] = {**row, **state_sums}
    return dict(zip(column.keys, torch.split(last.dequantize(), sizes), strict=True))


def _measure_moments(batch: Batch, decoded: Decoded, exact: Decoded, steps: int) -> None:
    """Add the sums of both moments of Adam to the rows of a batch."""
    watched = [e for e in batch.watched if e.rows and set(MOMENTS) <= set(e.names)]
    if not watched:
        return
    m, v = (torch.cat([_after(member, name, decoded) for member in watched]) for name in MOMENTS)
    exact_states = None
    if batch.last is not None:
        exact_states = {n: torch.cat([exact[e, n] for e in watched]) for n in watched[0].names}
    first, sizes = watched[0], [len(member.at) for member in watched]
    sums = of_moments(m, v, exact_states, first.group, first.steps_before + steps, sizes)
    for member, moment_sums in zip(watched, sums, strict=True):
        member.rows[[name for name in MOMENTS if name in member.rows][-1]].update(moment_sums)


def _after(member: Watched, name: str, decoded: Decoded) -> Tensor:
    """A decoded moment after the step, on the CPU."""
    sampled = decoded.get((member, name))
    return sample.values(member.state[name], member.at).cpu() if sampled is None else sampled


def _by_state(watched: Sequence[Watched], states: Values) -> Decoded:
    sizes = [len(member.at) for member in watched]
    return {
        (member, name): part
        for name, value in states.items()
        for member, part in zip(watched, torch.split(value, sizes), strict=True)
    }


def _gradient(member: Watched) -> Tensor:
    gradient = member.parameter.grad
    if gradient is None:
        return member.at.index.new_zeros(len(member.at), dtype=torch.float32)
    return sample.values(gradient, member.at)
