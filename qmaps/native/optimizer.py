"""Whole optimizer steps on the native engine: all parameters in one call."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import is_, itemgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qmaps.maps.base import FittedMap
from qmaps.native import core, tensors
from qmaps.packing import packed_bytes
from qmaps.philox import RoundingKey
from qmaps.quantizer import QuantizedTensor, Quantizer

if TYPE_CHECKING:
    from qmaps.optim.base import QuantizedOptimizer

Entry = tuple[int, Tensor, dict[str, Any]]
"""Number, parameter, group."""

FLOATS = (torch.float32, torch.bfloat16)


class FusedStep:
    """The native step of one optimizer, and the plan that it repeats while nothing changes.

    It takes the parameters that it can follow and leaves the others to the reference. States are
    written where they lie; the extra memory is that of a few blocks per thread and, where a scale
    spans more than a block, of one float32 per scale.

    Attributes:
        left: the parameters of the plan that are the reference's to step.
    """

    def __init__(self, optimizer: QuantizedOptimizer) -> None:
        self._optimizer = optimizer
        self._plan: Plan | None = None
        self.left: list[Entry] = []

    def fits(self, entries: list[Entry]) -> bool:
        """Whether the plan is one for these parameters as they are now."""
        return self._plan is not None and self._plan.fits(entries)

    def plan(self, entries: list[Entry]) -> None:
        """Plan a step of these parameters, which have dense gradients.

        States that are not there yet are made.
        """
        taken: list[Entry] = []
        self.left = []
        for entry in entries:
            (taken if _follows(self._optimizer, *entry[1:]) else self.left).append(entry)
        self._plan = Plan(self._optimizer, entries, taken)

    def run(self) -> None:
        """Take the step that was planned, but for the parameters that are left."""
        assert self._plan is not None
        self._plan.run()


class Plan:
    """Parameters with their states, described to the engine.

    Their step counters become views of one tensor, to be counted together.
    """

    def __init__(
        self, optimizer: QuantizedOptimizer, entries: list[Entry], taken: list[Entry]
    ) -> None:
        self._optimizer = optimizer
        self._entries = entries
        self._settings = _settings(optimizer)
        for _, param, group in taken:
            _start(optimizer, param, group)
        self._params = [param for _, param, _ in taken]
        self._groups = [group for _, _, group in taken]
        self._numel = sum(param.numel() for param in self._params)
        self._looks = [_look(param, _gradient(param)) for param in self._params]
        states = [optimizer.state[param] for param in self._params]
        self._counters = torch.stack([s["step"] for s in states]) if states else torch.zeros(0)
        for state, counter in zip(states, self._counters.unbind(), strict=True):
            state["step"] = counter
        names = [optimizer.states_of(group) for group in self._groups]
        self._readers = [itemgetter("step", "step", *used) for used in names]
        self._values = self._read()
        # Fitted maps are looked at anew each time, for their refits.
        self._once = any(map(_fitted, self._values)) or len(taken) < len(entries)
        self._step = self._described(taken, states, names)

    def fits(self, entries: list[Entry]) -> bool:
        """Whether these are the parameters of the plan, and nothing about them has changed."""
        if self._once or len(entries) != len(self._entries):
            return False
        if not all(
            new[1] is old[1] and new[2] is old[2]
            for new, old in zip(entries, self._entries, strict=True)
        ):
            return False
        if _settings(self._optimizer) != self._settings:
            return False
        looks = [_look(param, _gradient(param)) for param in self._params]
        return looks == self._looks and _same(self._read(), self._values)

    def run(self) -> None:
        """One step."""
        if not self._params:
            return
        self._counters += 1
        steps = [int(count) for count in self._counters.tolist()]
        numbers = list(zip(map(id, self._groups), steps, strict=True))
        kinds = dict(zip(numbers, self._groups, strict=True))
        constants = [
            list(self._optimizer.scalars(group, step).values())
            for (_, step), group in kinds.items()
        ]
        row = {kind: index for index, kind in enumerate(kinds)}
        grads = [_gradient(param).contiguous() for param in self._params]
        self._step.run(
            [param.data_ptr() for param in self._params],
            [grad.data_ptr() for grad in grads],
            constants,
            [row[number] for number in numbers],
            steps,
            tensors.threads(self._numel),
        )

    def _read(self) -> list[Any]:
        """Counters and states as they are now; None where one is missing."""
        state = self._optimizer.state
        try:
            found = [read(state[p]) for p, read in zip(self._params, self._readers, strict=True)]
        except KeyError:
            return []
        return list(chain.from_iterable(found))

    def _described(
        self, taken: list[Entry], states: list[dict[str, Any]], names: list[tuple[str, ...]]
    ) -> Any:
        step = core.Step()
        for (number, param, group), state, used in zip(taken, states, names, strict=True):
            step.add_parameter(
                self._optimizer.native_rule,
                " ".join(used),
                param.numel(),
                tensors.DTYPES[param.dtype],
                tensors.DTYPES[_gradient(param).dtype],
            )
            if group["stochastic_rounding"] and param.dtype == torch.bfloat16:
                rounding = RoundingKey(seed=group["seed"], purpose=1, tensor=number)
                step.add_rounding(rounding.words())
            for name in used:
                value = state[name]
                if isinstance(value, Tensor):
                    step.add_floats(value.data_ptr())
                    continue
                q = value.quantizer
                index = self._optimizer.state_names.index(name)
                key = RoundingKey(seed=group["seed"], tensor=number, state=index)
                step.add_quantized(
                    tensors.codebook(q.map),
                    tensors.geometry(q.normalizer, value.shape),
                    value.packed.data_ptr(),
                    [scale.data_ptr() for scale in value.scales],
                    [key.words()] if q.stochastic else [],
                )
        return step


def _follows(optimizer: QuantizedOptimizer, param: Tensor, group: dict[str, Any]) -> bool:
    """Whether the engine can step this parameter."""
    if not (
        param.device.type == "cpu"
        and param.dtype in FLOATS
        and _gradient(param).dtype in tensors.DTYPES
        and param.is_contiguous()
    ):
        return False
    state = optimizer.state[param]
    initial = optimizer.initial(group)
    ranges = set()
    for name in optimizer.states_of(group):
        q = optimizer.quantizer_of(name, param, group)
        value = state.get(name)
        if value is None and initial.get(name, 0) != 0:
            return False
        if q is not None and q.normalizer.log_domain:
            ranges.add(q.normalizer)
        if q is None:
            if value is not None and not (value.dtype == torch.float32 and value.is_contiguous()):
                return False
            continue
        if isinstance(q.map, FittedMap):
            # Fits are the reference's work; between them the codebook stands.
            if value is None or int(state["step"]) % group["refit_every"] == 0:
                return False
            q = value.quantizer
        if not tensors.follows(q.normalizer, q.map, tuple(param.shape)):
            return False
        if value is not None and (value.quantizer.spec != q.spec or not _contiguous(value)):
            return False
    # Blocks of different log2 ranges need not line up.
    return len(ranges) < 2


def _start(optimizer: QuantizedOptimizer, param: Tensor, group: dict[str, Any]) -> None:
    """Give a parameter the states that it does not have yet: zero."""
    state = optimizer.state[param]
    if "step" not in state:
        state["step"] = torch.zeros((), dtype=torch.float32)
    for name in optimizer.states_of(group):
        if name not in state:
            q = optimizer.quantizer_of(name, param, group)
            state[name] = (
                torch.zeros(param.shape, dtype=torch.float32) if q is None else zero(q, param)
            )


def _settings(optimizer: QuantizedOptimizer) -> list[tuple[Any, ...]]:
    """What the plan takes from the groups' options."""
    return [
        (
            optimizer.states_of(group),
            dict(group["state_quantizers"]),
            group["min_quantized_size"],
            group["stochastic_rounding"],
            group["seed"],
        )
        for group in optimizer.param_groups
    ]


def _look(param: Tensor, grad: Tensor) -> tuple[Any, ...]:
    return param.dtype, param.shape, param.is_contiguous(), grad.dtype, grad.layout


def _gradient(param: Tensor) -> Tensor:
    assert param.grad is not None
    return param.grad


def _same(ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    return len(ours) == len(theirs) and all(map(is_, ours, theirs))


def zero(q: Quantizer, like: Tensor) -> QuantizedTensor:
    """A quantized tensor of zeros: every scale is 0."""
    shape = tuple(like.shape)
    packed = torch.zeros(packed_bytes(like.numel(), q.map.bits), dtype=torch.uint8)
    scales = tuple(torch.zeros(size, dtype=dtype) for dtype, size in q.normalizer.layout(shape))
    return QuantizedTensor(q, shape, packed, scales)


def _fitted(value: Any) -> bool:
    return isinstance(value, QuantizedTensor) and value.quantizer.map.counted


def _contiguous(value: QuantizedTensor) -> bool:
    return all(part.is_contiguous() for part in (value.packed, *value.scales))
