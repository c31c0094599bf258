"""Samples of an optimizer's states over the steps of a window."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from qmaps.algebra.quantized import QuantizedTensor
from qmaps.capture.monitor import sample
from qmaps.capture.monitor.exact import Exact, Values, is_element_wise
from qmaps.capture.monitor.measures import MOMENTS, Measures, of_moments, of_states
from qmaps.capture.monitor.sample import Places
from qmaps.distributed.shards import local
from qmaps.engines.masters import MASTER, REMAINDER
from qmaps.engines.remainders import join
from qmaps.optim.base import QuantizedOptimizer

Row = dict[str, Any]
"""What is known of one state at one step, by column."""


@dataclass(eq=False)
class Watched:
    """A parameter of which some states are quantized.

    Attributes:
        label: its name.
        parameter: the parameter.
        group: its parameter group.
        state: the dict that its states are stored in.
        names: the states that its rule keeps.
        at: the sampled elements.
        taken: number of its steps before the window.
        rows: what is known of each quantized state, by name.
        lost: whether a step of the window passed it over, so that it cannot be measured.
    """

    label: str
    parameter: Tensor
    group: dict[str, Any]
    state: Mapping[str, Any]
    names: tuple[str, ...]
    at: Places
    taken: int
    rows: dict[str, Row] = field(default_factory=dict)
    lost: bool = False


@dataclass(eq=False)
class Column:
    """One state of several parameters, of which the samples are kept as one quantized tensor.

    Attributes:
        state: its name.
        kind: what the quantized tensors have in common.
        members: the parameters.
        places: the sampled elements of the state of each.
        first: the samples at the start of the window, on the states' device.
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

    def tensors(self) -> list[tuple[QuantizedTensor, Places]]:
        """The states as they are now."""
        now = [each.state[self.state] for each in self.members]
        return list(zip(now, self.places, strict=True))


@dataclass(eq=False)
class Batch:
    """Parameters whose samples are stepped together: all of one group, step and device.

    Attributes:
        watched: the parameters.
        drifting: their exact states from the start of the window on; None if their rule is not
            element-wise.
        last: their exact states in the last step alone; None before that step.
    """

    watched: list[Watched]
    drifting: Exact | None
    last: Exact | None = None


Decoded = dict[tuple[Watched, str], Tensor]
"""Decoded samples by parameter and state."""


class Window:
    """Watches samples of quantized states over a few steps, of which the last is measured.

    Args:
        optimizer: the optimizer, before the first of these steps.
        chosen: name, parameter and group of the parameters to watch. Those without a quantized
            state are left out, also those that have no state yet.
        most: number of elements of a sample.
    """

    def __init__(
        self,
        optimizer: QuantizedOptimizer,
        chosen: Iterable[tuple[str, Tensor, dict[str, Any]]],
        most: int,
    ) -> None:
        self._optimizer = optimizer
        self._steps = 0
        found = (_watched(optimizer, *each, most) for each in chosen)
        self._watched = [each for each in found if each is not None]
        self._columns = list(_columns(self._watched, most))
        together: dict[Hashable, list[Watched]] = defaultdict(list)
        for each in self._watched:
            # Names of a rule that is not element-wise are none that a batch needs.
            key = (id(each.group), each.taken, each.parameter.device, each.names)
            together[key].append(each)
        decoded = self._decoded({id(c): c.first for c in self._columns})
        self._batches = [
            Batch(members, self._exact(members, members[0].taken, decoded))
            for members in together.values()
        ]

    def before_last(self) -> None:
        """Look at the states before the step that is to be measured."""
        decoded = self._decoded({id(c): sample.joined(c.tensors()) for c in self._columns})
        for batch in self._batches:
            taken = batch.watched[0].taken + self._steps
            batch.last = self._exact(batch.watched, taken, decoded)

    def after_step(self) -> None:
        """Take the gradients of the step that the optimizer has just taken."""
        self._steps += 1
        scale = getattr(self._optimizer, "grad_scale", None)
        for each in self._watched:
            each.lost |= each.parameter.grad is None
        for batch in self._batches:
            if batch.drifting is None:
                continue
            gradient = torch.cat([_gradient(each) for each in batch.watched])
            gradient = gradient if scale is None else gradient / scale.to(gradient)
            batch.drifting.step(gradient)
            if batch.last is not None:
                batch.last.step(gradient)

    def rows(self) -> list[Row]:
        """Return what was measured in the last step: a row for each quantized state."""
        drifted, exact, decoded = Decoded(), Decoded(), Decoded()
        for batch in self._batches:
            for found, stepped in ((drifted, batch.drifting), (exact, batch.last)):
                if stepped is not None:
                    found.update(_by_state(batch.watched, stepped.states()))
        for column in self._columns:
            for part in _unchanged(column):
                decoded |= _measure(part, drifted, exact)
        for batch in self._batches:
            _measure_moments(batch, decoded, exact, self._steps)
        return [row for each in self._watched if self._stepped(each) for row in each.rows.values()]

    def _stepped(self, each: Watched) -> bool:
        """Whether the optimizer took every step of the window with this parameter."""
        return not each.lost and int(each.state["step"]) == each.taken + self._steps

    def _decoded(self, joined: Mapping[int, QuantizedTensor]) -> Decoded:
        decoded = Decoded()
        for column in self._columns:
            parts = torch.split(joined[id(column)].dequantize(), column.sizes)
            decoded |= {(e, column.state): x for e, x in zip(column.members, parts, strict=True)}
        return decoded

    def _exact(self, watched: list[Watched], taken: int, decoded: Decoded) -> Exact | None:
        """Exact states that start from those of the optimizer now; None if the rule has none."""
        first, optimizer = watched[0], self._optimizer
        if not all(is_element_wise(optimizer, e.parameter, e.group) for e in watched):
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
        return Exact(optimizer, first.group, taken, torch.cat(params), states)


def _values(e: Watched) -> Tensor:
    """The sampled values of a parameter, those of its master weights if it has some."""
    if REMAINDER not in e.state:
        return sample.values(e.state.get(MASTER, e.parameter), e.at)
    param, remainder = local(e.parameter).detach(), e.state[REMAINDER]
    return join(param.take(e.at.index), remainder.take(e.at.index))


def _watched(
    optimizer: QuantizedOptimizer, label: str, parameter: Tensor, group: dict[str, Any], most: int
) -> Watched | None:
    """What is needed to watch a parameter; None if none of its states is quantized now."""
    state = optimizer.state.get(parameter)
    if not isinstance(state, Mapping) or "step" not in state:
        return None
    if not any(isinstance(state.get(name), QuantizedTensor) for name in optimizer.state_names):
        return None
    here = local(parameter)
    at = sample.places(here.numel(), most, here.device)
    names = tuple(optimizer.state_shapes(parameter, group))
    return Watched(label, parameter, group, state, names, at, int(state["step"]))


def _columns(watched: Sequence[Watched], most: int) -> Iterator[Column]:
    """The quantized states of all parameters, those of one name and kind together."""
    found: dict[tuple[str, Hashable], list[tuple[Watched, Places]]] = defaultdict(list)
    for each in watched:
        for name, value in each.state.items():
            if isinstance(value, QuantizedTensor):
                # A statistic of rows or columns has a size of its own.
                at = sample.places(torch.Size(value.shape).numel(), most, value.device)
                if len(at):
                    found[name, sample.kind(value)].append((each, at))
    for (name, kind), members in found.items():
        first = sample.joined([(each.state[name], at) for each, at in members])
        yield Column(name, kind, [e for e, _ in members], [at for _, at in members], first)


def _unchanged(column: Column) -> Iterator[Column]:
    """The column itself; or a column for each of its states, if one has another map by now."""
    now = [each.state.get(column.state) for each in column.members]
    if all(isinstance(t, QuantizedTensor) and sample.kind(t) == column.kind for t in now):
        yield column
        return
    parts = sample.split(column.first, column.sizes)
    for each, at, first, t in zip(column.members, column.places, parts, now, strict=True):
        if isinstance(t, QuantizedTensor):  # otherwise another checkpoint was loaded
            yield Column(column.state, column.kind, [each], [at], first)


def _measure(column: Column, drifted: Decoded, exact: Decoded) -> Decoded:
    """Measure each state of a column, and return the decoded samples."""
    tensors, sizes = column.tensors(), column.sizes
    last = sample.joined(tensors).to("cpu")
    same = sample.kind(tensors[0][0]) == column.kind
    keys = [(each, column.state) for each in column.members]
    measures: list[Measures] = []
    if all(key in exact for key in keys):
        x, y = (torch.cat([found[key] for key in keys]) for found in (drifted, exact))
        measures = of_states(column.first.to("cpu") if same else None, last, x, y, sizes)
    else:
        for key, one, other in zip(
            keys,
            sample.split(column.first.to("cpu"), sizes),
            sample.split(last, sizes),
            strict=True,
        ):
            first = one if same else None
            measures += of_states(first, other, drifted.get(key), exact.get(key), other.shape)
    # Parameters share their quantizers, and a spec takes long to write.
    specs = {id(q): q.spec for q in {id(t.quantizer): t.quantizer for t, _ in tensors}.values()}
    for each, (t, at), found in zip(column.members, tensors, measures, strict=True):
        spec = specs[id(t.quantizer)]
        about = {"parameter": each.label, "state": column.state, "quantizer": spec}
        each.rows[column.state] = {**about, "numel": len(at), **found}
    return dict(zip(keys, torch.split(last.dequantize(), sizes), strict=True))


def _measure_moments(batch: Batch, decoded: Decoded, exact: Decoded, steps: int) -> None:
    """Add the measures of both moments of Adam to the rows of a batch."""
    watched = [e for e in batch.watched if e.rows and set(MOMENTS) <= set(e.names)]
    if not watched:
        return
    m, v = (torch.cat([_after(each, name, decoded) for each in watched]) for name in MOMENTS)
    known = None
    if batch.last is not None:
        known = {n: torch.cat([exact[e, n] for e in watched]) for n in watched[0].names}
    first, sizes = watched[0], [len(each.at) for each in watched]
    measures = of_moments(m, v, known, first.group, first.taken + steps, sizes)
    for each, found in zip(watched, measures, strict=True):
        each.rows[[name for name in MOMENTS if name in each.rows][-1]].update(found)


def _after(each: Watched, name: str, decoded: Decoded) -> Tensor:
    """A decoded moment after the step, on the CPU."""
    known = decoded.get((each, name))
    return sample.values(each.state[name], each.at).cpu() if known is None else known


def _by_state(watched: Sequence[Watched], states: Values) -> Decoded:
    sizes = [len(each.at) for each in watched]
    return {
        (each, name): part
        for name, value in states.items()
        for each, part in zip(watched, torch.split(value, sizes), strict=True)
    }


def _gradient(each: Watched) -> Tensor:
    gradient = each.parameter.grad
    if gradient is None:
        return each.at.index.new_zeros(len(each.at), dtype=torch.float32)
    return sample.values(gradient, each.at)
