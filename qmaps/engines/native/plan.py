"""Whole optimizer steps on the native engine: all parameters in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.engines.addresses import address
from qmaps.engines.masters import REMAINDER
from qmaps.engines.native import core, tensors
from qmaps.engines.plan import FusedPlan
from qmaps.engines.rules import ordered, scalar_names
from qmaps.engines.sharding.exchange import (
    Request,
    SharedScales,
    spans_shards,
    unformatted_shapes,
)
from qmaps.engines.sharding.shards import Shard
from qmaps.engines.step import (
    NONE_SHARED,
    RESET,
    Inputs,
    ParameterStep,
    Rule,
    Scaled,
    StepEngine,
    StepPlan,
)
from qmaps.engines.step_scalars import product_after, values_at
from qmaps.engines.support import NATIVE
from qmaps.normalize.base import Normalizer

CPU = torch.device("cpu")


class NativeEngine(StepEngine):
    """Steps on the CPU, in C++."""

    name = "native"

    def unsupported_reason(self, rule: Rule, parameter: ParameterStep) -> str:
        return next(NATIVE.of_parameter(rule, parameter, CPU), "")

    def plan(self, rule: Rule, parameters: Sequence[ParameterStep]) -> StepPlan:
        return NativePlan(rule, parameters)


class NativePlan(FusedPlan):
    """Parameters described to the engine's ``Step``."""

    _step: Any
    _shared: list[_Shared]

    def requests(self, inputs: Inputs) -> dict[Scaled, Request]:
        """New scales over other processes' shards: the first half of a step."""
        if not self._shared:
            return {}
        self._begin(inputs)
        return {scales.scaled: scales.request for scales in self._shared}

    def run(self, inputs: Inputs, shared: Mapping[Scaled, SharedScales] = NONE_SHARED) -> None:
        if not self._parameters:
            return
        if not self._shared:
            self._begin(inputs)
        for scales in self._shared:
            scales.encode_by(shared[scales.scaled])
        self._step.finish(self._threads)
        for scales in self._shared:
            scales.store(shared[scales.scaled])
        self._counters += 1
        self._products.copy_(torch.tensor(self._new_products, dtype=torch.float32))
        self._round_masters()

    def _begin(self, inputs: Inputs) -> None:
        steps = [int(count) + 1 for count in self._counters.tolist()]
        # Parameters of one group that are at the same step since their reset share their scalars.
        since = list(steps)
        for index in self._reset:
            since[index] = self._parameters[index].since_reset(steps[index])
        products = self._products.tolist() or [None] * len(since)
        kinds = list(zip(self._groups, since, products, strict=True))
        row = {kind: index for index, kind in enumerate(dict.fromkeys(kinds))}
        scalars, after = [], []
        for group, step, before in row:
            of_group = inputs.scalars[group]
            in_order = tuple(of_group) == self._scalar_names  # as of every rule of qmaps
            described = list(of_group.values()) if in_order else ordered(self._rule, of_group)
            scalars.append(values_at(described, step, before))
            if before is not None:
                after.append(product_after(described, step, before))
        self._new_products = [after[row[kind]] for kind in kinds] if after else []
        self._threads = 1 if self._numel < tensors.FEW else torch.get_num_threads()
        # The engine reads the copies until the step is finished.
        gradients_at, self._copies = self._gradients_at()
        self._step.begin(
            self._targets_at(),
            gradients_at,
            scalars,
            list(map(row.__getitem__, kinds)),
            steps,
            self._threads,
        )

    def _describe(self) -> None:
        self._groups: list[int] = []
        self._reset: list[int] = []
        self._scalar_names = scalar_names(self._rule)
        self._step = core.Step()
        self._shared = []
        pairs = zip(self._parameters, self._targets, strict=True)
        for index, (parameter, target) in enumerate(pairs):
            self._groups.append(parameter.group)
            if RESET in parameter.storage:
                self._reset.append(index)
            self._add(parameter, target)
            param = parameter.param
            if index in self._masters and param.dtype == torch.bfloat16 and param.is_contiguous():
                # The engine itself rounds the master copy into this parameter.
                self._step.add_rounded(address(param))
                del self._masters[index]
            if parameter.remainder is not None:
                remainder = parameter.storage[REMAINDER]
                self._step.add_remainder(address(remainder), remainder.itemsize)

    def _add(self, parameter: ParameterStep, target: Tensor) -> None:
        step, gradient = self._step, parameter.gradient
        coded = parameter.codes is not None
        step.add_parameter(
            self._rule,
            parameter.kernel_states,
            target.shape,
            tensors.DTYPES[torch.float32 if coded else target.dtype],
            tensors.DTYPES[gradient.dtype if isinstance(gradient, Tensor) else torch.float32],
        )
        if parameter.codes is not None:
            assert isinstance(gradient, QuantizedTensor)
            step.add_parameter_codes(*_described(parameter.codes, parameter.key))
            step.add_gradient_codes(*_described(gradient)[:-1])
        elif parameter.key is not None:
            step.add_rounding(parameter.key.words())
        self._add_states(parameter)

    def _add_states(self, parameter: ParameterStep) -> None:
        step = self._step
        for state in parameter.states:
            value = parameter.storage[state.name]
            if isinstance(value, Tensor):
                if state.factored:
                    step.add_factored_floats(address(value), value.numel())
                else:
                    step.add_floats(address(value))
                continue
            stored = _described(value, state.key)
            if state.factored:
                step.add_factored_quantized(torch.Size(value.shape).numel(), *stored)
            else:
                step.add_quantized(*stored)
            normalizer, shard = value.quantizer.normalizer, state.shard
            if shard is not None and spans_shards(normalizer, shard):
                scaled = (parameter.number, state.name)
                self._shared.append(_Shared.of(scaled, value, normalizer, shard))
                step.add_shared_scales(list(map(address, self._shared[-1].request.scales)))


class _Shared(NamedTuple):
    """A state with new scales over several processes' shards; `value` gets them after each step."""

    scaled: Scaled
    value: QuantizedTensor
    request: Request

    @staticmethod
    def of(scaled: Scaled, value: QuantizedTensor, normalizer: Normalizer, shard: Shard) -> _Shared:
        sizes = unformatted_shapes(normalizer, value.shape)
        memory = tuple(torch.zeros(size, dtype=torch.float32) for size in sizes)
        return _Shared(scaled, value, Request(normalizer, memory, shard))

    def encode_by(self, scales: SharedScales) -> None:
        """Give the engine the new scales; stored ones are still needed for decoding."""
        for memory, new in zip(self.request.scales, scales.floats, strict=True):
            memory.copy_(new)

    def store(self, scales: SharedScales) -> None:
        """Store the new scales, after the step."""
        for stored, new in zip(self.value.scales, scales.stored, strict=True):
            stored.copy_(new)


def _described(t: QuantizedTensor, key: RoundingKey | None = None) -> tuple[Any, ...]:
    """Codebook, geometry, addresses and rounding of a contiguous quantized tensor."""
    q = t.quantizer
    stored = tensors.stored(t.packed, t.scales, q.normalizer, q.map, t.shape)
    noise = None if key is None else q.noise(key)
    return *stored, None if noise is None else noise.words()
