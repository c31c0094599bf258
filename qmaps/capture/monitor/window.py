"""Samples of an optimizer's states over the steps of a window."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from qmaps.algebra.quantized import QuantizedTensor
from qmaps.capture.monitor import sample
from qmaps.capture.monitor.exact import Exact, Values, is_element_wise
from qmaps.capture.monitor.measures import MOMENTS, Seen, of_moments, of_state
from qmaps.distributed.shards import local
from qmaps.engines.masters import MASTER
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
        group_number: the number of that group.
        index: indices of the sampled elements, on the parameter's device.
        places: the same for each quantized state, by name.
        first: samples of these states at the start of the window, by name.
        taken: number of its steps before the window.
        lost: whether a step of the window passed it over, so that it cannot be measured.
    """

    label: str
    parameter: Tensor
    group: dict[str, Any]
    group_number: int
    index: Tensor
    places: dict[str, Tensor]
    first: dict[str, QuantizedTensor]
    taken: int
    lost: bool = False


@dataclass(eq=False)
class Batch:
    """Parameters whose samples are stepped together: all of one group, step and device.

    Attributes:
        watched: the parameters.
        drifting: their exact states from the start of the window on.
        last: their exact states in the last step alone; None before that step.
    """

    watched: list[Watched]
    drifting: Exact
    last: Exact | None = field(default=None)


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
        numbers = {id(group): n for n, group in enumerate(optimizer.param_groups)}
        found = (
            _watched(optimizer, label, p, group, numbers[id(group)], most)
            for label, p, group in chosen
        )
        self._watched = [each for each in found if each is not None]
        together: dict[Any, list[Watched]] = defaultdict(list)
        for each in self._watched:
            if is_element_wise(optimizer, each.parameter, each.group):
                names = tuple(optimizer.state_shapes(each.parameter, each.group))
                key = (each.group_number, each.taken, each.index.device, names)
                together[key].append(each)
        self._batches = [
            Batch(members, self._exact(members, taken))
            for (_, taken, _, _), members in together.items()
        ]

    def before_last(self) -> None:
        """Look at the states before the step that is to be measured."""
        for batch in self._batches:
            batch.last = self._exact(batch.watched, batch.watched[0].taken + self._steps)

    def after_step(self) -> None:
        """Take the gradients of the step that the optimizer has just taken."""
        self._steps += 1
        scale = getattr(self._optimizer, "grad_scale", None)
        for each in self._watched:
            each.lost |= each.parameter.grad is None
        for batch in self._batches:
            gradients = [_gradient(each, scale) for each in batch.watched]
            batch.drifting.step(gradients)
            if batch.last is not None:
                batch.last.step(gradients)

    def rows(self) -> list[Row]:
        """Return what was measured in the last step: a row for each quantized state."""
        drifted: dict[Watched, Values] = {}
        exact: dict[Watched, Values] = {}
        for batch in self._batches:
            assert batch.last is not None  # `before_last` comes first
            drifted |= zip(batch.watched, batch.drifting.states(), strict=True)
            exact |= zip(batch.watched, batch.last.states(), strict=True)
        rows: list[Row] = []
        for each in self._watched:
            step = each.taken + self._steps
            state = self._optimizer.state[each.parameter]
            if not each.lost and int(state["step"]) == step:
                rows += _rows(each, state, drifted.get(each), exact.get(each), step)
        return rows

    def _exact(self, watched: list[Watched], taken: int) -> Exact:
        """Exact states that start from those of the optimizer now."""
        optimizer, states = self._optimizer, []
        for each in watched:
            own = optimizer.state[each.parameter]
            names = optimizer.state_shapes(each.parameter, each.group)
            states.append({name: _sampled(own[name], each.index) for name in names})
        params = [
            sample.values(optimizer.state[each.parameter].get(MASTER, each.parameter), each.index)
            for each in watched
        ]
        return Exact(optimizer, watched[0].group, taken, params, states)


def _watched(
    optimizer: QuantizedOptimizer,
    label: str,
    parameter: Tensor,
    group: dict[str, Any],
    number: int,
    most: int,
) -> Watched | None:
    """What is needed to watch a parameter; None if none of its states is quantized now."""
    state = optimizer.state.get(parameter)
    if not isinstance(state, Mapping) or "step" not in state:
        return None
    quantized = {
        name: value
        for name in optimizer.state_names
        if isinstance(value := state.get(name), QuantizedTensor)
    }
    if not quantized:
        return None
    device = next(iter(quantized.values())).device
    # A statistic of rows or columns has a shape of its own.
    places = {
        name: sample.chosen(math.prod(value.shape), most).to(device)
        for name, value in quantized.items()
    }
    first = {
        name: sample.quantized(value, places[name]).to("cpu") for name, value in quantized.items()
    }
    index = sample.chosen(local(parameter).numel(), most).to(device)
    return Watched(label, parameter, group, number, index, places, first, int(state["step"]))


def _gradient(each: Watched, scale: Tensor | None) -> Tensor:
    gradient = each.parameter.grad
    if gradient is None:
        return torch.zeros(each.index.numel(), device=each.index.device)
    found = sample.values(gradient, each.index)
    return found if scale is None else found / scale.to(found)


def _sampled(state: Tensor | QuantizedTensor, index: Tensor) -> Tensor:
    """Some elements of a state, decoded: float32."""
    if isinstance(state, QuantizedTensor):
        return sample.quantized(state, index).dequantize()
    return sample.values(state, index)


def _rows(
    each: Watched, state: Mapping[str, Any], drifted: Values | None, last: Values | None, step: int
) -> list[Row]:
    """The rows of one parameter after the step of this number."""
    rows: dict[str, Row] = {}
    decoded: Values = {}
    for name, first in each.first.items():
        now = state.get(name)
        if not isinstance(now, QuantizedTensor):
            return []  # another checkpoint was loaded
        after = sample.quantized(now, each.places[name]).to("cpu")
        seen = Seen(
            first,
            after,
            None if last is None else last[name],
            None if drifted is None else drifted[name],
        )
        about = {"parameter": each.label, "state": name, "quantizer": now.quantizer.spec}
        rows[name] = {**about, "numel": after.shape[0], **of_state(seen)}
        decoded[name] = seen.last.dequantize()
    for name in MOMENTS:
        if name not in decoded and isinstance(state.get(name), Tensor):
            decoded[name] = sample.values(state[name], each.index).cpu()
    if set(MOMENTS) <= decoded.keys():
        m, v = (decoded[name] for name in MOMENTS)
        of_both = of_moments(m, v, last, each.group, step)
        rows[[name for name in MOMENTS if name in rows][-1]].update(of_both)
    return list(rows.values())
