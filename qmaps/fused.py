"""Steps of many parameters at once: what the engines share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qmaps.backends import in_memory
from qmaps.exchange import spans_shards
from qmaps.maps.base import FittedMap, Map
from qmaps.masters import has_master, updated
from qmaps.normalize.base import Normalizer
from qmaps.packing import packed_bytes
from qmaps.quantizer import QuantizedTensor, Quantizer
from qmaps.shards import is_distributed, local, shard_of

if TYPE_CHECKING:
    from qmaps.optim.base import QuantizedOptimizer

Entry = tuple[int, Tensor, dict[str, Any], Tensor]
"""Number, parameter, group, gradient."""

FLOATS = (torch.float32, torch.bfloat16)
GRADIENTS = (torch.float32, torch.bfloat16, torch.float16)

COUNTER = torch.float64
"""Of step counters: float32, as torch has it and states from elsewhere may, stops at 2**24."""


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
            readable = in_memory(local(entry[1])) and in_memory(entry[3])
            (taken if readable and self._follows(entry) else self.left).append(entry)
        self._plan = self._planned(entries, taken)

    def run(self) -> None:
        """Take the step that was planned, but for the parameters that are left."""
        assert self._plan is not None
        self._plan.run()
        self._plan.round()

    @abstractmethod
    def _follows(self, entry: Entry) -> bool:
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
        self._settings = _settings(optimizer)
        for _, param, group, _ in taken:
            start(optimizer, param, group)
        self._params = [entry[1] for entry in taken]
        self._here = list(map(local, self._params))
        self._sharded = any(map(is_distributed, self._params))
        # What is stepped: parameters, or their master copies.
        self._targets = [updated(p, group, optimizer.state[p]) for _, p, group, _ in taken]
        pairs = zip(self._targets, self._here, strict=True)
        self._copies = [(copy, here) for copy, here in pairs if copy is not here]
        self._groups = [entry[2] for entry in taken]
        self._grads = [entry[3] for entry in taken]
        self._numel = sum(here.numel() for here in self._here)
        self._looks = list(map(_look, self._here, self._grads))
        self._addresses = _addresses(self._here, self._grads)
        self._places = self._where()
        states = [optimizer.state[param] for param in self._params]
        device = self._here[0].device if taken else torch.device("cpu")
        counters = [state["step"].to(device, COUNTER) for state in states]
        self._counters = torch.stack(counters) if states else torch.zeros(0)
        for state, counter in zip(states, self._counters.unbind(), strict=True):
            state["step"] = counter
        self._states = states
        self._values = _values(states)
        # Fitted maps are looked at anew each time, for their refits.
        self._once = any(map(_fitted, self._values)) or len(taken) < len(entries)
        self._describe(taken, [tuple(optimizer.state_shapes(p, g)) for _, p, g, _ in taken])

    def fits(self, entries: list[Entry]) -> bool:
        """Whether these are the parameters of the plan, and nothing about them has changed.

        If so, their gradients are those of the next `run`.
        """
        if self._once or _settings(self._optimizer) != self._settings:
            return False
        columns = list(zip(*entries, strict=True)) or [(), (), (), ()]
        if not (_same(columns[1], self._params) and _same(columns[2], self._groups)):
            return False
        states = list(map(self._optimizer.state.get, self._params))
        if not (_same(states, self._states) and _same(_values(self._states), self._values)):
            return False
        self._grads = list(columns[3])
        here = list(map(local, self._params)) if self._sharded else self._params
        try:
            addresses = _addresses(here, self._grads)
        except RuntimeError:  # a sparse gradient has none
            return False
        if addresses != self._addresses:
            # Elsewhere, they might look otherwise too.
            if list(map(_look, here, self._grads)) != self._looks:
                return False
            self._addresses = addresses
            self._places = self._where()
        return True

    def round(self) -> None:
        """Make parameters that have master copies their rounded values, after `run`."""
        if self._copies:
            copies, params = map(list, zip(*self._copies, strict=True))
            torch._foreach_copy_(params, copies)

    def _where(self) -> list[int]:
        """Where what is stepped lies."""
        if not self._copies:
            found: list[int] = self._addresses[0]
            return found
        return [target.data_ptr() for target in self._targets]

    @abstractmethod
    def run(self) -> None:
        """One step."""

    @abstractmethod
    def _describe(self, taken: list[Entry], names: list[tuple[str, ...]]) -> None:
        """Tell the engine of the parameters, and of their states by these names."""


def followed(
    optimizer: QuantizedOptimizer,
    entry: Entry,
    follows: Callable[[Normalizer, Map, tuple[int, ...]], bool],
) -> bool:
    """Whether an engine that `follows` such quantizers can step this parameter."""
    _, param, group, grad = entry
    here, shard = local(param), shard_of(param)
    # Of a parameter with a master copy it is the copy that is stepped.
    direct = here.dtype in FLOATS and here.is_contiguous()
    if not (grad.dtype in GRADIENTS and (direct or has_master(param, group))):
        return False
    if shard is not None and shard.groups() and optimizer.takes_norms:
        return False  # of the whole, which only the reference puts together
    if shard is not None and shard.runs is not None and optimizer.rounds(param, group):
        return False
    state = optimizer.state[param]
    initial = optimizer.initial(group)
    shapes = optimizer.local_shapes(param, group, shard)
    if optimizer.side_states.intersection(shapes) and (shard is not None or not param.numel()):
        return False  # its statistics are of the whole, or of nothing
    for name, shape in shapes.items():
        q = optimizer.quantizer_of(name, param, group)
        value = state.get(name)
        if value is None and initial.get(name, 0) != 0:
            return False
        if q is None:
            if value is not None and not (
                isinstance(value, Tensor)
                and in_memory(value)
                and value.dtype == torch.float32
                and value.is_contiguous()
            ):
                return False
            continue
        if value is not None and not isinstance(value, QuantizedTensor):
            return False
        if isinstance(q.map, FittedMap):
            # Fits are the reference's work; between them the codebook stands.
            if value is None or int(state["step"]) % group["refit_every"] == 0:
                return False
            q = value.quantizer
        if shard is not None and (
            spans_shards(q.normalizer, shard) or (q.stochastic and shard.runs is not None)
        ):
            return False
        if not follows(q.normalizer, q.map, shape):
            return False
        if value is not None and (value.quantizer.spec != q.spec or not _contiguous(value)):
            return False
    return True


def start(optimizer: QuantizedOptimizer, param: Tensor, group: dict[str, Any]) -> None:
    """Give a parameter the states that it does not have yet: zero."""
    state, here = optimizer.state[param], local(param)
    if "step" not in state:
        state["step"] = torch.zeros((), dtype=COUNTER, device=here.device)
    updated(param, group, state)
    for name, shape in optimizer.local_shapes(param, group, shard_of(param)).items():
        if name not in state:
            q = optimizer.quantizer_of(name, param, group)
            state[name] = (
                torch.zeros(shape, dtype=torch.float32, device=here.device)
                if q is None
                else zero(q, shape, here.device)
            )


def count_step(state: dict[str, Any]) -> int:
    """Count one more step of the parameter with this state; returns its number: 1, 2, ..."""
    counter = state["step"]
    if counter.dtype != COUNTER:
        counter = state["step"] = counter.to(COUNTER)
    counter += 1
    return int(counter)


SIDES = "sides"
"""What stands for all states with fewer elements than the parameter in the name of a rule."""


def rule_states(optimizer: QuantizedOptimizer, names: Iterable[str]) -> str:
    """The states of a parameter as engines name them: ``"exp_avg sides"``."""
    names = list(names)
    own = [name for name in names if name not in optimizer.side_states]
    return " ".join(own if len(own) == len(names) else [*own, SIDES])


def zero(q: Quantizer, shape: tuple[int, ...], device: torch.device) -> QuantizedTensor:
    """A quantized tensor of zeros: every scale is 0."""
    numel = torch.Size(shape).numel()
    packed = torch.zeros(packed_bytes(numel, q.map.bits), dtype=torch.uint8, device=device)
    return QuantizedTensor(q, shape, packed, q.normalizer.zero_scales(shape, device))


def _settings(optimizer: QuantizedOptimizer) -> list[tuple[Any, ...]]:
    """What a plan takes from the groups' options."""
    return [
        (
            optimizer.states_of(group),
            *optimizer.decisive(group),
            group["stochastic_rounding"],
            group["master_weights"],
            group["seed"],
            group["nonfinite"],
        )
        for group in optimizer.param_groups
    ]


def _look(param: Tensor, grad: Tensor) -> tuple[Any, ...]:
    ours = param.dtype, param.shape, param.is_contiguous(), param.device, in_memory(param)
    return *ours, grad.dtype, grad.layout, in_memory(grad)


def _addresses(params: list[Tensor], grads: list[Tensor]) -> tuple[list[Any], ...]:
    """Where they lie, and as what."""
    return (
        [param.data_ptr() for param in params],
        [grad.data_ptr() for grad in grads],
        [param.dtype for param in params],
        [grad.dtype for grad in grads],
    )


def _values(states: list[dict[str, Any]]) -> list[Any]:
    return list(chain.from_iterable(map(dict.values, states)))


def _same(ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    return len(ours) == len(theirs) and all(map(is_, ours, theirs))


def _fitted(value: Any) -> bool:
    return isinstance(value, QuantizedTensor) and value.quantizer.map.counted


def _contiguous(value: QuantizedTensor) -> bool:
    return all(part.is_contiguous() for part in (value.packed, *value.scales))
