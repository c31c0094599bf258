"""Base class of the plans of fused engines; they work on memory addresses."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from qmaps.algebra.packing import fill, stored
from qmaps.algebra.quantizer import QuantizedTensor, Quantizer
from qmaps.engines import huge_pages
from qmaps.engines.addresses import WatchedTensors, address, in_memory, tensor_info
from qmaps.engines.masters import MASTER, REMAINDER, updated
from qmaps.engines.step import (
    COUNTER,
    PRODUCT,
    ParameterStep,
    Rule,
    StepPlan,
    codes_of,
    start_product,
)
from qmaps.engines.threads import safe_after_fork
from qmaps.maps.base import Map, cached, table


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
        self._params: list[Tensor] = []
        # The tensors that are stepped: parameters, or their master copies.
        self._targets: list[Tensor]
        self._masters: dict[int, Tensor] = {}
        self._masters_at: dict[int, int] = {}
        self._dense: list[int] = []
        self._coded: list[int] = []
        self._grads: list[Tensor] = []
        self._copies: list[Tensor] = []
        self._strided: list[int] = []
        self._numel = 0
        with safe_after_fork():
            self._targets = list(map(start, parameters))
        for index, (parameter, target) in enumerate(zip(parameters, self._targets, strict=True)):
            param, gradient = parameter.param, parameter.gradient
            self._params.append(param)
            self._numel += param.numel()
            if target is not param:
                self._masters[index], self._masters_at[index] = target, address(target)
            if parameter.codes is not None:
                self._coded.append(index)
                continue
            assert isinstance(gradient, Tensor)
            if not gradient.is_contiguous():
                self._strided.append(len(self._grads))
            self._dense.append(index)
            self._grads.append(gradient)
        self._addresses, self._attributes = tensor_info(
            [*self._only_dense(self._params), *self._grads]
        )
        self._counters = self._together("step", COUNTER)
        self._products = self._together(PRODUCT, torch.float32)
        self._watched = WatchedTensors(self._memory())
        self._describe()
        # The gradients of one step are not to outlive it.
        nothing = torch.empty(0, dtype=torch.float32)
        for index in self._dense:
            self._parameters[index] = replace(self._parameters[index], gradient=nothing)

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
        if self._coded:
            if not all(self._still_coded(i, params[i], gradients[i]) for i in self._coded):
                return False
            params, gradients = self._only_dense(params), self._only_dense(gradients)
        if not _of_torch(gradients):
            return False
        try:
            addresses, attributes = tensor_info([*params, *gradients])
        except RuntimeError:  # inside a transform of torch.func tensors have no storage
            return False
        count = len(params)
        if attributes != self._attributes or addresses[:count] != self._addresses[:count]:
            return False
        if not self._watched.unchanged():
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
            storage = parameter.storage
            for state in parameter.states:
                parts += memory_of(storage[state.name])
            numbers = ("step", MASTER, REMAINDER, PRODUCT)
            parts += [storage[name] for name in numbers if name in storage]
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


def start(parameter: ParameterStep) -> Tensor:
    """Create missing numbers, master copy and states, and return the tensor that is stepped."""
    storage, device = parameter.storage, parameter.param.device
    if "step" not in storage:
        storage["step"] = torch.zeros((), dtype=COUNTER, device=device)
    start_product(parameter)
    target = updated(parameter)
    for state in parameter.states:
        if state.name not in storage:
            q = state.quantizer
            storage[state.name] = (
                huge_pages.empty(state.shape, dtype=torch.float32, device=device).zero_()
                if q is None
                else zero(q, state.shape, device)
            )
    return target


def zero(q: Quantizer, shape: tuple[int, ...], device: torch.device) -> QuantizedTensor:
    """A quantized tensor of positive zeros, as a state begins: its scales are 0."""
    nbytes, _, _ = stored(q.normalizer, q.map.bits, shape)
    packed = huge_pages.empty((nbytes,), dtype=torch.uint8, device=device)
    fill(packed, q.map.bits, zero_code(q.map), math.prod(shape))
    return QuantizedTensor(q, shape, packed, q.normalizer.zero_scales(shape, device))


@cached(512)
def zero_code(map_: Map) -> int:
    """The lowest code of a value that is not negative; negative ones times 0 are -0.0."""
    if map_.fitted or map_.log_domain:
        return 0
    return int((table(map_).signbit()).sum().clamp(max=len(table(map_)) - 1))


def memory_of(value: Any) -> list[Tensor]:
    """Tensors of a state: packed codes and scales, or the tensor itself."""
    if isinstance(value, QuantizedTensor):
        parts = [value.packed, *value.scales]
        for t in value.beside:
            parts += memory_of(t)
        return parts
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
