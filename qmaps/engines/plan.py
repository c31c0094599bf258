"""Base class of the plans of fused engines; they work on memory addresses."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from qmaps.algebra.quantized import QuantizedTensor
from qmaps.algebra.quantizer import Quantizer
from qmaps.algebra.rounding import Rounding
from qmaps.engines import huge_pages
from qmaps.engines.addresses import Kept, address, in_memory, look
from qmaps.engines.dithered_states import dithered_states
from qmaps.engines.masters import MASTER, REMAINDER, updated
from qmaps.engines.packing import packed_bytes
from qmaps.engines.philox import RoundingKey
from qmaps.engines.step import (
    COUNTER,
    PRODUCT,
    ParameterStep,
    Rule,
    StateStep,
    StepPlan,
    codes_of,
    spanning_states,
    start_product,
)
from qmaps.engines.threads import safe_after_fork
from qmaps.maps.base import Map
from qmaps.maps.fitted import FittedMap
from qmaps.normalize.base import Normalizer

FLOATS = (torch.float32, torch.bfloat16)
GRADIENTS = (torch.float32, torch.bfloat16, torch.float16)


class FusedPlan(StepPlan):
    """Parameters with their states, described to an engine and stepped in place.

    The step counters become views of one tensor, so that one operation advances all of them. The
    extra memory is that of a few blocks, and one float32 for each multi-block scale (a scale
    over more than one block).

    Args:
        rule: the update rule.
        parameters: supported parameters; missing states are created.
    """

    def __init__(self, rule: Rule, parameters: Sequence[ParameterStep]) -> None:
        # Not the rule itself: it may refer to its optimizer, which keeps this plan.
        self._rule, self._takes_norms = str(rule.name), rule.takes_norms
        self._parameters = list(parameters)
        for parameter in parameters:
            start(parameter)
        self._params = [p.param for p in parameters]
        # The tensors that are stepped: parameters, or their master copies.
        self._targets = list(map(updated, parameters))
        pairs = enumerate(zip(self._targets, self._params, strict=True))
        self._masters = {index: copy for index, (copy, param) in pairs if copy is not param}
        self._dense = [index for index, p in enumerate(parameters) if p.codes is None]
        self._coded = [index for index, p in enumerate(parameters) if p.codes is not None]
        self._grads: list[Tensor] = [
            p.gradient for p in parameters if isinstance(p.gradient, Tensor)
        ]
        self._copies: list[Tensor] = []
        self._numel = sum(param.numel() for param in self._params)
        self._addresses, self._appearance = look([*self._only_dense(self._params), *self._grads])
        self._strided = [i for i, grad in enumerate(self._grads) if not grad.is_contiguous()]
        self._counters = self._together("step", COUNTER)
        self._products = self._together(PRODUCT, torch.float32)
        self._dithered = [
            state for index, p in enumerate(parameters) for state in dithered_states(index, p)
        ]
        self._kept = Kept(self._memory())
        self._masters_at = {index: address(copy) for index, copy in self._masters.items()}
        self._describe()
        # The gradients of one step are not to outlive it.
        nothing = torch.empty(0, dtype=torch.float32)
        self._parameters = [
            replace(p, gradient=nothing) if p.codes is None else p for p in self._parameters
        ]

    def _together(self, name: str, dtype: torch.dtype) -> Tensor:
        """Make the numbers of this name, if there are some, views of one tensor."""
        parameters = [p for p in self._parameters if name in p.storage]
        if not parameters:
            return torch.zeros(0, dtype=dtype)
        device = parameters[0].param.device
        numbers = torch.stack([p.storage[name].to(device, dtype) for p in parameters])
        for p, number in zip(parameters, numbers.unbind(), strict=True):
            p.storage[name] = number
        return numbers

    @abstractmethod
    def _describe(self) -> None:
        """Describe the parameters and their states to the engine."""

    def takes(self, params: Sequence[Tensor], gradients: Sequence[Tensor]) -> bool:
        """Return True if no address has changed; if so, the next step takes these gradients.

        Every step but the first takes those that were given here. They are kept until it ends.
        """
        # A key may be another one now; engines number elements one by one.
        if any(dithered.key.runs is not None for dithered in self._dithered):
            return False
        if self._coded:
            if not all(self._still_coded(i, params[i], gradients[i]) for i in self._coded):
                return False
            params, gradients = self._only_dense(params), self._only_dense(gradients)
        if not _of_torch(gradients):
            return False
        try:
            addresses, appearance = look([*params, *gradients])
        except RuntimeError:  # inside a transform of torch.func tensors have no storage
            return False
        count = len(params)
        if appearance != self._appearance or addresses[:count] != self._addresses[:count]:
            return False
        if not self._kept.unchanged():
            return False
        self._grads, self._addresses = list(gradients), addresses
        return True

    def _still_coded(self, index: int, param: Any, gradient: Any) -> bool:
        parameter = self._parameters[index]
        return codes_of(param) is parameter.codes and codes_of(gradient) is parameter.gradient

    def _only_dense(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensors[index] for index in self._dense] if self._coded else list(tensors)

    def leave_gradients(self) -> None:
        """Release the gradients and their contiguous copies."""
        self._grads, self._copies = [], []

    def _round_masters(self) -> None:
        """Round the master copies into their parameters, after a step."""
        if self._masters:
            params = [self._params[index] for index in self._masters]
            torch._foreach_copy_(params, list(self._masters.values()))

    def _memory(self) -> list[Tensor]:
        """Everything with an address known to the engine, but parameters and gradients."""
        parts = []
        for parameter in self._parameters:
            if parameter.codes is not None:
                parts += memory_of(parameter.codes) + memory_of(parameter.gradient)
            names = [state.name for state in parameter.states]
            for name in ("step", *names, MASTER, REMAINDER, PRODUCT):
                if name in parameter.storage:
                    parts += memory_of(parameter.storage[name])
        return parts

    def _targets_at(self) -> list[int]:
        """The addresses of the parameters, or of their master copies; 0 for those in codes."""
        addresses = self._addresses[: len(self._dense)]
        if self._coded:
            addresses = self._spread(addresses)
        for index, at in self._masters_at.items():
            addresses[index] = at
        return addresses

    def _gradients_at(self) -> tuple[list[int], list[Tensor]]:
        """Addresses of contiguous gradients, and the copies to be kept as long."""
        addresses = self._addresses[len(self._dense) :]
        copies = []
        for index in self._strided:
            copies.append(self._grads[index].contiguous())
            addresses[index] = address(copies[-1])
        return self._spread(addresses) if self._coded else addresses, copies

    def _spread(self, addresses: list[int]) -> list[int]:
        """The addresses of dense tensors among those of all."""
        spread = [0] * len(self._parameters)
        for index, at in zip(self._dense, addresses, strict=True):
            spread[index] = at
        return spread


def fused_supports(
    rule: Rule,
    parameter: ParameterStep,
    supports: Callable[[Normalizer, Map, tuple[int, ...]], bool],
    *,
    spanning: bool = False,
    roundings: Collection[Rounding] = (Rounding.NEAREST, Rounding.STOCHASTIC),
) -> bool:
    """Return True if a parameter meets the conditions of all fused engines.

    Args:
        rule: the update rule.
        parameter: the parameter.
        supports: returns True for a supported normalizer and map for a tensor of a shape.
        spanning: whether the engine supports scales over other processes' shards.
        roundings: roundings of states supported by the engine.

    Returns:
        False if the parameter, its gradient, its states or its shard need the reference.
    """
    if parameter.codes is None and not _dense_supported(parameter):
        return False
    shard = parameter.shard
    if shard is not None and shard.groups() and rule.takes_norms:
        return False  # norms of a sharded parameter, which only the reference combines
    if shard is not None and shard.runs is not None and parameter.key is not None:
        return False
    factored = any(state.factored for state in parameter.states)
    if factored and (shard is not None or not parameter.param.numel()):
        return False  # its statistics need all shards, or there are no elements
    if not spanning and any(spanning_states(parameter)):
        return False
    return all(_state_supported(parameter, s, supports, roundings) for s in parameter.states)


def _dense_supported(parameter: ParameterStep) -> bool:
    param, gradient = parameter.param, parameter.gradient
    assert isinstance(gradient, Tensor)
    if not (in_memory(param) and in_memory(gradient) and gradient.dtype in GRADIENTS):
        return False
    remainder = parameter.storage.get(REMAINDER) if parameter.remainder is not None else None
    if remainder is not None and not readable(remainder):
        return False
    # For a parameter with a master copy, the copy is stepped.
    return parameter.master or (param.dtype in FLOATS and param.is_contiguous())


def _state_supported(
    parameter: ParameterStep,
    state: StateStep,
    supports: Callable[[Normalizer, Map, tuple[int, ...]], bool],
    roundings: Collection[Rounding],
) -> bool:
    q, shard, value = state.quantizer, parameter.shard, parameter.storage.get(state.name)
    if value is None and state.initial != 0:
        return False
    if q is None:
        return value is None or (
            isinstance(value, Tensor) and value.dtype == torch.float32 and readable(value)
        )
    if value is not None and not isinstance(value, QuantizedTensor):
        return False
    if isinstance(q.map, FittedMap):
        # Fits are the reference's work; between them the codebook stays.
        if value is None or int(parameter.storage["step"]) % parameter.refit_every == 0:
            return False
        q = value.quantizer
    if shard is not None and q.rounding.random and shard.runs is not None:
        return False
    if q.low_rank is not None or q.rounding not in roundings:
        return False
    if not supports(q.normalizer, q.map, state.shape):
        return False
    if value is not None and value.key is not None and value.key.runs is not None:
        return False  # engines number elements one by one
    return value is None or (value.quantizer.spec == q.spec and readable(value))


@safe_after_fork()
def start(parameter: ParameterStep) -> None:
    """Create missing entries of a parameter: numbers, master copy, and states of zeros."""
    storage, device = parameter.storage, parameter.param.device
    if "step" not in storage:
        storage["step"] = torch.zeros((), dtype=COUNTER, device=device)
    start_product(parameter)
    updated(parameter)
    for state in parameter.states:
        if state.name not in storage:
            q = state.quantizer
            storage[state.name] = (
                huge_pages.zeros(state.shape, dtype=torch.float32, device=device)
                if q is None
                else zero(q, state.shape, device, state.key if q.dithered else None)
            )


@safe_after_fork()
def zero(
    q: Quantizer, shape: tuple[int, ...], device: torch.device, key: RoundingKey | None = None
) -> QuantizedTensor:
    """A quantized tensor with codes and scales of 0, as a state begins.

    Args:
        q: the quantizer; its map has a codebook. It has no low-rank part.
        shape: the shape of the tensor.
        device: where codes and scales are allocated.
        key: any key for a dithered tensor; None for others.

    Returns:
        A tensor of `shape`, with packed codes of dtype uint8 and the normalizer's zero scales, and
        the same of the residual under error feedback.
    """
    numel = torch.Size(shape).numel()
    packed = huge_pages.zeros((packed_bytes(numel, q.map.bits),), dtype=torch.uint8, device=device)
    beside = tuple(zero(quantizer, size, device) for quantizer, size in q.beside(shape))
    scales = q.normalizer.zero_scales(shape, device)
    return QuantizedTensor(q, shape, packed, scales, key, beside)


def memory_of(value: Any) -> list[Tensor]:
    """Tensors of a state: packed codes and scales, or the tensor itself."""
    if isinstance(value, QuantizedTensor):
        beside = [part for t in value.beside for part in memory_of(t)]
        return [value.packed, *value.scales, *beside]
    return [value] if isinstance(value, Tensor) else []


def readable(value: Tensor | QuantizedTensor) -> bool:
    """Return True if engines can read and write a state in place."""
    return all(in_memory(part) and part.is_contiguous() for part in memory_of(value))


def _of_torch(tensors: Sequence[Tensor]) -> bool:
    """Return True if all are of classes with torch's operations."""
    classes: set[Any] = set(map(type, tensors))
    return classes == {Tensor} or all(
        cls.__torch_dispatch__ is Tensor.__torch_dispatch__ for cls in classes
    )
