"""Optimizer steps in plain PyTorch: the reference, on every device, for every rule and shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from qmaps.algebra.quantized import QuantizedTensor, restored
from qmaps.distributed.exchange import Request, SharedScales
from qmaps.distributed.over_shards import whole_of
from qmaps.engines.bfloat16 import round_stochastically
from qmaps.engines.masters import REMAINDER, exact, updated
from qmaps.engines.remainders import split
from qmaps.engines.step import (
    COUNTER,
    NONE_SHARED,
    PRODUCT,
    Context,
    Inputs,
    ParameterStep,
    Rule,
    Scaled,
    StateStep,
    StepEngine,
    StepPlan,
    count_step,
    spanning_states,
    start_product,
)
from qmaps.engines.step_scalars import product_after, values_at
from qmaps.maps.fitted import FittedMap


class ReferenceEngine(StepEngine):
    """Decodes states, applies the rule, and encodes the new states, one parameter at a time."""

    def supports(self, rule: Rule, given: ParameterStep) -> bool:  # noqa: ARG002
        """Return True if it can step this parameter: always."""
        return True

    def plan(self, rule: Rule, given: Sequence[ParameterStep]) -> StepPlan:
        """A plan for these parameters, for one step."""
        return ReferencePlan(rule, given)


class ReferencePlan(StepPlan):
    """Parameters that are stepped one after another."""

    def __init__(self, rule: Rule, given: Sequence[ParameterStep]) -> None:
        self._rule, self._given = rule, given
        self._scalars: dict[tuple[int, int, float | None], dict[str, float]] = {}

    def takes(self, params: Sequence[Tensor], gradients: Sequence[Tensor]) -> bool:  # noqa: ARG002
        """Return True if the next step can be taken by this plan: each plan is for one step."""
        return False

    def requests(self, inputs: Inputs) -> dict[Scaled, Request]:
        """The new scales that depend on other processes' shards.

        They are computed by taking the step twice, so that new states need not be kept in between.
        """
        asked: dict[Scaled, Request] = {}
        for given in self._given:
            spanning = list(spanning_states(given))
            if spanning:
                step = int(given.storage.get("step", 0)) + 1
                states = self._advanced(given, step, inputs, keep=True)[1]
                for state, normalizer, shard in spanning:
                    value = _restored(given, state, states[state.name])
                    asked[given.number, state.name] = Request.of(normalizer, value, shard)
        return asked

    def run(self, inputs: Inputs, shared: Mapping[Scaled, SharedScales] = NONE_SHARED) -> None:
        """Take one step."""
        for given in self._given:
            if "step" not in given.storage:
                given.storage["step"] = torch.zeros((), dtype=COUNTER)
            start_product(given)
            updated(given)
            step = count_step(given.storage)
            values, states = self._advanced(given, step, inputs)
            if (product := given.storage.get(PRODUCT)) is not None:
                described = inputs.scalars[given.group].values()
                after = product_after(described, given.since_reset(step), float(product))
                product.fill_(after)
            _write(given, step, values)
            for state in given.states:
                scales = shared.get((given.number, state.name))
                given.storage[state.name] = _encoded(given, state, states[state.name], step, scales)

    def _advanced(
        self, given: ParameterStep, step: int, inputs: Inputs, *, keep: bool = False
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """A parameter and its states in float32 after this step, for the parts on this process.

        Tensors that are already float32 are changed in place, unless they have to be kept.
        """
        values = _read(given)
        states = {state.name: _decoded(given, state) for state in given.states}
        if keep:
            values = values.clone()
            states = {name: value.clone() for name, value in states.items()}
        gradient = given.gradient
        if isinstance(gradient, QuantizedTensor):
            gradient = gradient.dequantize()
        gradient = gradient.float()
        if inputs.grad_scale is not None:
            gradient = gradient / inputs.grad_scale.to(gradient)
        step = given.since_reset(step)
        context = Context(given.number, step, given.options)
        with whole_of(given.shard):
            self._rule.apply(
                context, values, gradient, states, self._in_float32(given, step, inputs)
            )
        return values, states

    def _in_float32(self, given: ParameterStep, step: int, inputs: Inputs) -> dict[str, float]:
        """The scalars of a parameter in this step, rounded to float32 as rules see them."""
        product = given.storage.get(PRODUCT)
        kind = given.group, step, given.product if product is None else float(product)
        if kind not in self._scalars:
            scalars = inputs.scalars[given.group]
            exact = torch.tensor(values_at(scalars.values(), *kind[1:]), dtype=torch.float64)
            self._scalars[kind] = dict(zip(scalars, exact.float().tolist(), strict=True))
        return self._scalars[kind]


def _read(given: ParameterStep) -> Tensor:
    """The float32 values of a parameter; not a copy if it, or its master copy, is float32."""
    if given.codes is not None:
        return given.codes.dequantize()
    target = updated(given)
    return target.float() if given.remainder is None else exact(target, given.storage)


def _write(given: ParameterStep, step: int, values: Tensor) -> None:
    """Write the new float32 `values` to a parameter, rounded as it is stored."""
    key = None if given.key is None else replace(given.key, step=step)
    if given.codes is not None:
        before = given.codes.dequantize() if given.observers else values
        given.codes.quantizer.quantize_unchecked(values, out=given.codes, key=key)
        for observer in given.observers:
            observer(given.label, step, before, values, given.codes)
        return
    if given.remainder is not None:
        values, remainder = split(values, given.remainder)
        given.storage[REMAINDER].copy_(remainder)
    if key is not None:
        values = round_stochastically(values, key)
    if values is not given.param:
        given.param.copy_(values)


def _decoded(given: ParameterStep, state: StateStep) -> Tensor:
    """A state in float32: its initial value everywhere before the first step."""
    value = given.storage.get(state.name)
    if value is None:
        if state.shape != tuple(given.param.shape):
            return torch.full(
                state.shape, state.initial, dtype=torch.float32, device=given.param.device
            )
        return torch.full_like(given.param, state.initial, dtype=torch.float32)
    decoded: Tensor = value.dequantize() if isinstance(value, QuantizedTensor) else value
    return decoded


def _restored(given: ParameterStep, state: StateStep, value: Tensor) -> Tensor:
    """A new state with what the last encoding lost added, where that is kept (error feedback)."""
    previous = given.storage.get(state.name)
    return restored(previous, value) if isinstance(previous, QuantizedTensor) else value


def _encoded(
    given: ParameterStep, state: StateStep, value: Tensor, step: int, scales: SharedScales | None
) -> Tensor | QuantizedTensor:
    """A new state as it is stored; `scales` are those that depend on other processes."""
    q = state.quantizer
    previous = given.storage.get(state.name)
    if q is None:
        return _restored(given, state, value)
    fresh = (step - 1) % given.refit_every == 0
    if isinstance(q.map, FittedMap) and isinstance(previous, QuantizedTensor) and not fresh:
        q = previous.quantizer
    key = None if state.key is None else replace(state.key, step=step)
    after = previous if isinstance(previous, QuantizedTensor) else None
    if scales is not None:
        return q.quantize_scaled(value, scales.stored, key=key, after=after)
    return q.quantize_unchecked(value, key=key, after=after)
