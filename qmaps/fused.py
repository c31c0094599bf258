"""Steps of many parameters at once: what the engines share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import chain
from operator import is_, itemgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qmaps.maps.base import FittedMap, Map
from qmaps.normalize.base import Normalizer
from qmaps.packing import packed_bytes
from qmaps.quantizer import QuantizedTensor, Quantizer

if TYPE_CHECKING:
    from qmaps.optim.base import QuantizedOptimizer

Entry = tuple[int, Tensor, dict[str, Any]]
"""Number, parameter, group."""

FLOATS = (torch.float32, torch.bfloat16)
GRADIENTS = (torch.float32, torch.bfloat16, torch.float16)


class FusedStep(ABC):
    """One engine's step of an optimizer, and the plan that it repeats while nothing changes.

    It takes the parameters that it can follow and leaves the others. States are written where
    they lie; the extra memory is that of a few blocks and, where a scale spans more than a block,
    of one float32 per scale.

    Attributes:
        left: the parameters of the plan that are somebody else's to step.
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
            (taken if self._follows(*entry[1:]) else self.left).append(entry)
        self._plan = self._planned(entries, taken)

    def run(self) -> None:
        """Take the step that was planned, but for the parameters that are left."""
        assert self._plan is not None
        self._plan.run()

    @abstractmethod
    def _follows(self, param: Tensor, group: dict[str, Any]) -> bool:
        """Whether the engine can step this parameter."""

    @abstractmethod
    def _planned(self, entries: list[Entry], taken: list[Entry]) -> Plan:
        """The engine's plan for the parameters that it takes."""


class Plan(ABC):
    """Parameters with their states, described to an engine.

    Their step counters become views of one tensor, to be counted together.
    """

    def __init__(
        self, optimizer: QuantizedOptimizer, entries: list[Entry], taken: list[Entry]
    ) -> None:
        self._optimizer = optimizer
        self._entries = entries
        self._settings = _settings(optimizer)
        for _, param, group in taken:
            start(optimizer, param, group)
        self._params = [param for _, param, _ in taken]
        self._groups = [group for _, _, group in taken]
        self._numel = sum(param.numel() for param in self._params)
        self._looks = [_look(param, gradient(param)) for param in self._params]
        states = [optimizer.state[param] for param in self._params]
        device = self._params[0].device if taken else torch.device("cpu")
        counters = [state["step"].to(device) for state in states]
        self._counters = torch.stack(counters) if states else torch.zeros(0)
        for state, counter in zip(states, self._counters.unbind(), strict=True):
            state["step"] = counter
        names = [optimizer.states_of(group) for group in self._groups]
        self._readers = [itemgetter("step", "step", *used) for used in names]
        self._values = self._read()
        # Fitted maps are looked at anew each time, for their refits.
        self._once = any(map(_fitted, self._values)) or len(taken) < len(entries)
        self._describe(taken, states, names)

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
        looks = [_look(param, gradient(param)) for param in self._params]
        return looks == self._looks and _same(self._read(), self._values)

    @abstractmethod
    def run(self) -> None:
        """One step."""

    @abstractmethod
    def _describe(
        self, taken: list[Entry], states: list[dict[str, Any]], names: list[tuple[str, ...]]
    ) -> None:
        """Tell the engine of the parameters, their states, and the names of these."""

    def _read(self) -> list[Any]:
        """Counters and states as they are now; None where one is missing."""
        state = self._optimizer.state
        try:
            found = [read(state[p]) for p, read in zip(self._params, self._readers, strict=True)]
        except KeyError:
            return []
        return list(chain.from_iterable(found))


def followed(
    optimizer: QuantizedOptimizer,
    param: Tensor,
    group: dict[str, Any],
    follows: Callable[[Normalizer, Map, tuple[int, ...]], bool],
) -> bool:
    """Whether an engine that `follows` such quantizers can step this parameter."""
    if not (param.dtype in FLOATS and gradient(param).dtype in GRADIENTS and param.is_contiguous()):
        return False
    state = optimizer.state[param]
    initial = optimizer.initial(group)
    for name in optimizer.states_of(group):
        q = optimizer.quantizer_of(name, param, group)
        value = state.get(name)
        if value is None and initial.get(name, 0) != 0:
            return False
        if q is None:
            if value is not None and not (value.dtype == torch.float32 and value.is_contiguous()):
                return False
            continue
        if isinstance(q.map, FittedMap):
            # Fits are the reference's work; between them the codebook stands.
            if value is None or int(state["step"]) % group["refit_every"] == 0:
                return False
            q = value.quantizer
        if not follows(q.normalizer, q.map, tuple(param.shape)):
            return False
        if value is not None and (value.quantizer.spec != q.spec or not _contiguous(value)):
            return False
    return True


def start(optimizer: QuantizedOptimizer, param: Tensor, group: dict[str, Any]) -> None:
    """Give a parameter the states that it does not have yet: zero."""
    state = optimizer.state[param]
    if "step" not in state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=param.device)
    for name in optimizer.states_of(group):
        if name not in state:
            q = optimizer.quantizer_of(name, param, group)
            state[name] = (
                torch.zeros(param.shape, dtype=torch.float32, device=param.device)
                if q is None
                else zero(q, param)
            )


def zero(q: Quantizer, like: Tensor) -> QuantizedTensor:
    """A quantized tensor of zeros: every scale is 0."""
    shape, device = tuple(like.shape), like.device
    packed = torch.zeros(packed_bytes(like.numel(), q.map.bits), dtype=torch.uint8, device=device)
    scales = tuple(
        torch.zeros(size, dtype=dtype, device=device) for dtype, size in q.normalizer.layout(shape)
    )
    return QuantizedTensor(q, shape, packed, scales)


def gradient(param: Tensor) -> Tensor:
    """The parameter's gradient, which is there."""
    assert param.grad is not None
    return param.grad


def _settings(optimizer: QuantizedOptimizer) -> list[tuple[Any, ...]]:
    """What a plan takes from the groups' options."""
    return [
        (
            optimizer.states_of(group),
            dict(group["state_quantizers"]),
            group["min_quantized_size"],
            group["stochastic_rounding"],
            group["seed"],
            group["nonfinite"],
        )
        for group in optimizer.param_groups
    ]


def _look(param: Tensor, grad: Tensor) -> tuple[Any, ...]:
    return param.dtype, param.shape, param.is_contiguous(), param.device, grad.dtype, grad.layout


def _same(ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    return len(ours) == len(theirs) and all(map(is_, ours, theirs))


def _fitted(value: Any) -> bool:
    return isinstance(value, QuantizedTensor) and value.quantizer.map.counted


def _contiguous(value: QuantizedTensor) -> bool:
    return all(part.is_contiguous() for part in (value.packed, *value.scales))
