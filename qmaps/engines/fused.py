"""Optimizer steps of many parameters at once: the code that the engines share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qmaps.algebra.quantized import QuantizedTensor
from qmaps.algebra.quantizer import Quantizer
from qmaps.distributed.exchange import spans_shards
from qmaps.distributed.shards import any_distributed, local, shard_of
from qmaps.engines.addresses import Kept, address, in_memory, look, overlapping
from qmaps.engines.masters import MASTER, has_master, updated
from qmaps.engines.packing import packed_bytes
from qmaps.maps.base import Map
from qmaps.maps.fitted import FittedMap
from qmaps.normalize.base import Normalizer

if TYPE_CHECKING:
    from qmaps.optim.base import QuantizedOptimizer

Entry = tuple[int, Tensor, dict[str, Any], Tensor]
"""Number, parameter, group, gradient."""

FLOATS = (torch.float32, torch.bfloat16)
GRADIENTS = (torch.float32, torch.bfloat16, torch.float16)

COUNTER = torch.float64
"""The dtype of step counters; float32, which torch uses, cannot count beyond 2**24."""


class FusedStep(ABC):
    """One engine's step of an optimizer, and the plan that it repeats while nothing changes.

    It steps the parameters that its engine supports and leaves the others. States are updated in
    place. The extra memory is that of a few blocks, and one float32 for each multi-block scale (a
    scale that spans more than one block).

    Attributes:
        left: the parameters of the plan that the engine does not step.
    """

    def __init__(self, optimizer: QuantizedOptimizer) -> None:
        self._optimizer = optimizer
        self._plan: Plan | None = None
        self.left: list[Entry] = []

    def fits(self, entries: list[Entry]) -> bool:
        """Whether there is a plan for these parameters, and nothing about them has changed."""
        return self._plan is not None and self._plan.fits(entries)

    def plan(self, entries: list[Entry]) -> None:
        """Plan a step of these parameters, which have dense gradients.

        Missing states of the parameters that the engine steps are created.
        """
        taken: list[Entry] = []
        self.left = []
        # An engine steps parameters at the same time; one that is given twice steps twice.
        shared = overlapping([local(entry[1]) for entry in entries])
        for index, entry in enumerate(entries):
            plain = in_memory(local(entry[1])) and in_memory(entry[3]) and index not in shared
            (taken if plain and self._follows(entry) else self.left).append(entry)
        self._plan = self._planned(entries, taken)

    def run(self) -> None:
        """Take the planned step of all parameters except those in `left`."""
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

    Their step counters become views of one tensor, so that one operation advances all of them.
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
        self._sharded = any_distributed(self._params)
        # What is stepped: parameters, or their master copies.
        self._targets = [updated(p, group, optimizer.state[p]) for _, p, group, _ in taken]
        pairs = enumerate(zip(self._targets, self._here, strict=True))
        self._masters = {index: copy for index, (copy, here) in pairs if copy is not here}
        self._groups = [entry[2] for entry in taken]
        self._grads = [entry[3] for entry in taken]
        self._numel = sum(here.numel() for here in self._here)
        self._addresses, self._appearance = look([*self._here, *self._grads])
        self._strided = [i for i, g in enumerate(self._grads) if not g.is_contiguous()]
        states = [optimizer.state[param] for param in self._params]
        device = self._here[0].device if taken else torch.device("cpu")
        counters = [state["step"].to(device, COUNTER) for state in states]
        self._counters = torch.stack(counters) if states else torch.zeros(0)
        for state, counter in zip(states, self._counters.unbind(), strict=True):
            state["step"] = counter
        self._states = states
        self._names = [tuple(optimizer.state_shapes(p, g)) for _, p, g, _ in taken]
        self._values = _values(states)
        self._kept = Kept([each for value in self._described() for each in memory_of(value)])
        self._masters_at = {index: address(copy) for index, copy in self._masters.items()}
        # Fitted maps are looked at anew each time, for their refits.
        self._once = any(map(_fitted, self._values)) or len(taken) < len(entries)
        self._describe(taken, self._names)

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
        here = list(map(local, self._params)) if self._sharded else self._params
        grads = list(columns[3])
        if not _of_torch(grads):
            return False
        try:
            addresses, appearance = look([*here, *grads])
        except RuntimeError:  # inside a transform of torch.func tensors have no storage
            return False
        count = len(here)
        if appearance != self._appearance or addresses[:count] != self._addresses[:count]:
            return False
        if not self._kept.unchanged():
            return False
        self._here, self._grads, self._addresses = here, grads, addresses
        return True

    def round(self) -> None:
        """Round the master copies into their parameters, after `run`."""
        if self._masters:
            params = [self._here[index] for index in self._masters]
            torch._foreach_copy_(params, list(self._masters.values()))

    def _described(self) -> Iterator[Any]:
        """The values of states, of which engines know the addresses."""
        for state, names in zip(self._states, self._names, strict=True):
            yield state["step"]
            yield from (state[name] for name in (*names, MASTER) if name in state)

    def _targets_at(self) -> list[int]:
        """The addresses of the parameters, or of their master copies."""
        addresses = self._addresses[: len(self._params)]
        for index, at in self._masters_at.items():
            addresses[index] = at
        return addresses

    def _gradients_at(self) -> tuple[list[int], list[Tensor]]:
        """The addresses of contiguous gradients, and the copies that must live as long as these."""
        addresses = self._addresses[len(self._params) :]
        copies = [self._grads[index].contiguous() for index in self._strided]
        for index, copied in zip(self._strided, copies, strict=True):
            addresses[index] = address(copied)
        return addresses, copies

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
    """Whether an engine can step this parameter: the conditions that all engines share.

    Args:
        optimizer: the optimizer that the parameter belongs to.
        entry: the parameter with its number, group and gradient.
        follows: tells whether the engine supports a normalizer and a map for a tensor of a shape.

    Returns:
        False where the parameter, its gradient, its states or its shard need the reference.
    """
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
                isinstance(value, Tensor) and value.dtype == torch.float32 and readable(value)
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
        if value is not None and (value.quantizer.spec != q.spec or not readable(value)):
            return False
    return True


def start(optimizer: QuantizedOptimizer, param: Tensor, group: dict[str, Any]) -> None:
    """Create the states that a parameter does not have yet: its step, master copy and zeros.

    Args:
        optimizer: the optimizer; ``optimizer.state[param]`` is changed in place.
        param: a parameter; of a DTensor the states are those of its local part.
        group: the options of the parameter's group.
    """
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
    """Advance the step counter in this state by 1; returns the step's number: 1, 2, ..."""
    counter = state["step"]
    if counter.dtype != COUNTER:
        counter = state["step"] = counter.to(COUNTER)
    counter += 1
    return int(counter)


SIDES = "sides"
"""The word for all states with fewer elements than the parameter, in an engine's list of states."""


def rule_states(optimizer: QuantizedOptimizer, names: Iterable[str]) -> str:
    """The states of a parameter as engines name them: ``"exp_avg sides"``."""
    names = list(names)
    own = [name for name in names if name not in optimizer.side_states]
    return " ".join(own if len(own) == len(names) else [*own, SIDES])


def zero(q: Quantizer, shape: tuple[int, ...], device: torch.device) -> QuantizedTensor:
    """A quantized tensor whose codes and scales are all 0, as a state begins.

    Args:
        q: the quantizer; its map has a codebook.
        shape: the shape of the tensor.
        device: where codes and scales are allocated.

    Returns:
        A tensor of `shape`, with packed codes of dtype uint8 and the normalizer's zero scales.
    """
    numel = torch.Size(shape).numel()
    packed = torch.zeros(packed_bytes(numel, q.map.bits), dtype=torch.uint8, device=device)
    return QuantizedTensor(q, shape, packed, q.normalizer.zero_scales(shape, device))


def _settings(optimizer: QuantizedOptimizer) -> list[tuple[Any, ...]]:
    """The options of all groups that a plan depends on."""
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


def memory_of(value: Any) -> list[Tensor]:
    """The tensors that a state consists of: packed codes and scales, or the tensor itself."""
    if isinstance(value, QuantizedTensor):
        return [value.packed, *value.scales]
    return [value] if isinstance(value, Tensor) else []


def _of_torch(tensors: list[Tensor]) -> bool:
    """Whether all are of classes that leave their operations to torch."""
    classes: set[Any] = set(map(type, tensors))
    return all(cls.__torch_dispatch__ is Tensor.__torch_dispatch__ for cls in classes)


def _values(states: list[dict[str, Any]]) -> list[Any]:
    return list(chain.from_iterable(map(dict.values, states)))


def _same(ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    return len(ours) == len(theirs) and all(map(is_, ours, theirs))


def _fitted(value: Any) -> bool:
    return isinstance(value, QuantizedTensor) and value.quantizer.map.counted


def readable(value: Tensor | QuantizedTensor) -> bool:
    """Whether engines can read and write a state in place."""
    return all(in_memory(each) and each.is_contiguous() for each in memory_of(value))
