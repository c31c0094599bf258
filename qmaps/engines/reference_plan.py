"""Optimizer steps in plain PyTorch: the reference, on every device, for every rule and shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qmaps.algebra.coder import Coder
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.engines.bfloat16 import round_stochastically, split
from qmaps.engines.masters import REMAINDER, exact, updated
from qmaps.engines.reference_coder import REFERENCE
from qmaps.engines.sharding.exchange import Request, SharedScales
from qmaps.engines.sharding.over_shards import whole_of
from qmaps.engines.sharding.owners import Matrix, Owned, gather, rounds, scatter
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
    StepPlan,
    spanning_states,
    start_product,
)
from qmaps.engines.step_scalars import product_after, values_at
from qmaps.maps.fitted import FittedMap


class ReferencePlan(StepPlan):
    """Parameters stepped one after another: it decodes states, applies the rule, and encodes.

    Every rule, parameter and device is supported, so no engine stands before it.

    Args:
        rule: the rule of all parameters.
        parameters: their descriptions.
        coder: encodes and decodes their states.
    """

    def __init__(
        self, rule: Rule, parameters: Sequence[ParameterStep], coder: Coder = REFERENCE
    ) -> None:
        self._rule, self._parameters, self._coder = rule, parameters, coder
        self._scalars: dict[tuple[int, int, float | None], dict[str, float]] = {}

    def takes(self, params: Sequence[Tensor], gradients: Sequence[Tensor]) -> bool:
        """Return True if the next step can be taken by this plan: each plan is for one step."""
        return False

    def requests(self, inputs: Inputs) -> dict[Scaled, Request]:
        """New scales over other processes' shards.

        They are computed by taking the step twice, to avoid storing new states in between.
        """
        asked: dict[Scaled, Request] = {}
        for parameter in self._parameters:
            spanning = list(spanning_states(parameter))
            if spanning:
                step = int(parameter.storage.get("step", 0)) + 1
                states = self._advanced(parameter, step, inputs, keep=True)[1]
                for state, normalizer, shard in spanning:
                    value = states[state.name]
                    asked[parameter.number, state.name] = Request.of(normalizer, value, shard)
        return asked

    def run(self, inputs: Inputs, shared: Mapping[Scaled, SharedScales] = NONE_SHARED) -> None:
        for p in self._parameters:
            if not p.matrices:
                step = _begun(p)
                values, states = self._advanced(p, step, inputs)
                if (product := p.storage.get(PRODUCT)) is not None:
                    described = inputs.scalars[p.group].values()
                    after = product_after(described, p.since_reset(step), float(product))
                    product.fill_(after)
                self._write(p, step, values)
                self._store(p, states, step, shared)
        self._run_on_owners([p for p in self._parameters if p.matrices], inputs, shared)

    def _run_on_owners(
        self,
        parameters: Sequence[ParameterStep],
        inputs: Inputs,
        shared: Mapping[Scaled, SharedScales],
    ) -> None:
        """Step parameters whose matrices are computed by their owners, in rounds."""
        places = [(p, index) for p in parameters for index in range(len(p.matrices))]
        started: dict[int, _Started] = {}
        for batch in rounds([p.matrices[index] for p, index in places]):
            members = [places[n] for n in batch]
            for p, _ in members:
                if p.number not in started:
                    step = _begun(p)
                    prepared, states = self._advanced(p, step, inputs)
                    self._store(p, states, step, shared)
                    started[p.number] = _Started(step, prepared, len(p.matrices))
            whole = gather([started[p.number].part(p, index) for p, index in members])
            for p, index in members:
                if p.matrices[index].owned:
                    whole = self._transformed(p, started[p.number].step, whole, inputs)
            for p, _ in members:
                if started[p.number].tensor is p.gradient:
                    started[p.number].tensor = torch.empty_like(p.gradient)
            scatter([started[p.number].part(p, index) for p, index in members], whole)
            whole = None
            for p, _ in members:
                started[p.number].missing -= 1
                if not started[p.number].missing:
                    self._finish(p, started.pop(p.number), inputs)

    def _advanced(
        self, parameter: ParameterStep, step: int, inputs: Inputs, *, keep: bool = False
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """A parameter and its states in float32 after this step, for the parts on this process.

        If owners compute its matrices, the result of `Phases.prepare` and the states it changes.
        Float32 tensors are changed in place, unless `keep` is set.
        """
        later = _owned_here if parameter.matrices else lambda _: False
        states = {s.name: self._decoded(parameter, s) for s in parameter.states if not later(s)}
        if keep:
            states = {name: value.clone() for name, value in states.items()}
        gradient = parameter.gradient
        if isinstance(gradient, QuantizedTensor):
            gradient = self._coder.decode(gradient)
        gradient = gradient.float()
        if inputs.grad_scale is not None:
            gradient = gradient / inputs.grad_scale.to(gradient)
        context, scalars = self._context(parameter, step, inputs)
        with whole_of(parameter.shard):
            if parameter.matrices:
                assert self._rule.phases is not None
                prepared = self._rule.phases.prepare(context, gradient, states, scalars)
                return prepared, states
            values = self._read(parameter).clone() if keep else self._read(parameter)
            self._rule.apply(context, values, gradient, states, scalars)
        return values, states

    def _transformed(
        self, parameter: ParameterStep, step: int, whole: Tensor | None, inputs: Inputs
    ) -> Tensor:
        """The update of a matrix that this process owns; the states it owns are stored."""
        assert whole is not None and self._rule.phases is not None  # noqa: PT018
        states = {s.name: self._decoded(parameter, s) for s in parameter.states if _owned_here(s)}
        context, scalars = self._context(parameter, step, inputs)
        update = self._rule.phases.transform(context, whole, states, scalars)
        self._store(parameter, states, step, NONE_SHARED)
        return update

    def _finish(self, parameter: ParameterStep, started: _Started, inputs: Inputs) -> None:
        assert self._rule.phases is not None
        values = self._read(parameter)
        context, scalars = self._context(parameter, started.step, inputs)
        with whole_of(parameter.shard):
            self._rule.phases.finish(context, values, started.tensor, scalars)
        self._write(parameter, started.step, values)

    def _context(
        self, parameter: ParameterStep, step: int, inputs: Inputs
    ) -> tuple[Context, dict[str, float]]:
        step = parameter.since_reset(step)
        context = Context(parameter.number, step, parameter.options)
        return context, self._in_float32(parameter, step, inputs)

    def _in_float32(self, parameter: ParameterStep, step: int, inputs: Inputs) -> dict[str, float]:
        """The scalars of a parameter in this step, rounded to float32 as rules see them."""
        product = parameter.storage.get(PRODUCT)
        kind = parameter.group, step, parameter.product if product is None else float(product)
        if kind not in self._scalars:
            scalars = inputs.scalars[parameter.group]
            exact = torch.tensor(values_at(scalars.values(), *kind[1:]), dtype=torch.float64)
            self._scalars[kind] = dict(zip(scalars, exact.float().tolist(), strict=True))
        return self._scalars[kind]

    def _store(
        self,
        parameter: ParameterStep,
        states: Mapping[str, Tensor],
        step: int,
        shared: Mapping[Scaled, SharedScales],
    ) -> None:
        """Store new states."""
        for state in parameter.states:
            if state.name in states:
                scales = shared.get((parameter.number, state.name))
                value = states[state.name]
                parameter.storage[state.name] = self._encoded(parameter, state, value, step, scales)

    def _read(self, parameter: ParameterStep) -> Tensor:
        """The float32 values of a parameter; not a copy if it, or its master copy, is float32."""
        if parameter.codes is not None:
            return self._coder.decode(parameter.codes)
        target = updated(parameter)
        return target.float() if parameter.remainder is None else exact(target, parameter.storage)

    def _write(self, parameter: ParameterStep, step: int, values: Tensor) -> None:
        """Write the new float32 `values` to a parameter, rounded as it is stored."""
        key = None if parameter.key is None else replace(parameter.key, step=step)
        if parameter.codes is not None:
            coded = parameter.codes
            self._coder.encode(coded.quantizer, values, out=coded, key=key)
            return
        if parameter.remainder is not None:
            values, remainder = split(values, parameter.remainder)
            parameter.storage[REMAINDER].copy_(remainder)
        if key is not None:
            values = round_stochastically(values, key)
        if values is not parameter.param:
            parameter.param.copy_(values)

    def _decoded(self, parameter: ParameterStep, state: StateStep) -> Tensor:
        """A state in float32: its initial value everywhere before the first step."""
        value = parameter.storage.get(state.name)
        if value is None:
            if state.shape != tuple(parameter.param.shape):
                return torch.full(
                    state.shape, state.initial, dtype=torch.float32, device=parameter.param.device
                )
            return torch.full_like(parameter.param, state.initial, dtype=torch.float32)
        return self._coder.decode(value) if isinstance(value, QuantizedTensor) else value

    def _encoded(
        self,
        target: ParameterStep,
        state: StateStep,
        value: Tensor,
        step: int,
        scales: SharedScales | None,
    ) -> Tensor | QuantizedTensor:
        """A new state as it is stored; `scales` are those over other processes' shards."""
        q = state.quantizer
        previous = target.storage.get(state.name)
        if q is None:
            return value
        fresh = (step - 1) % target.refit_every == 0
        if isinstance(q.map, FittedMap) and isinstance(previous, QuantizedTensor) and not fresh:
            q = previous.quantizer
        key = None if state.key is None else replace(state.key, step=step)
        if scales is not None:
            return self._coder.encode_scaled(q, value, scales.stored, key=key)
        after = previous if isinstance(previous, QuantizedTensor) else None
        return self._coder.encode(q, value, key=key, after=after)


@dataclass
class _Started:
    """A step whose matrices are with their owners.

    Attributes:
        step: number of the step.
        tensor: result of `Phases.prepare`; the update takes its place.
        missing: number of matrices whose update is not here yet.
    """

    step: int
    tensor: Tensor
    missing: int

    def part(self, parameter: ParameterStep, index: int) -> tuple[Matrix, Tensor]:
        """A matrix of the parameter, with its local part."""
        matrix = parameter.matrices[index]
        stacked = len(matrix.shape) < self.tensor.dim()
        return matrix, self.tensor[index] if stacked else self.tensor


def _begun(parameter: ParameterStep) -> int:
    """Count the step, and create what it needs; returns the step's number."""
    storage = parameter.storage
    if "step" not in storage:
        storage["step"] = torch.zeros((), dtype=COUNTER)
    start_product(parameter)
    updated(parameter)
    counter = storage["step"]
    if counter.dtype != COUNTER:
        counter = storage["step"] = counter.to(COUNTER)
    counter += 1
    return int(counter)


def _owned_here(state: StateStep) -> bool:
    """Return True for a state that this process, as the owner, has whole."""
    return isinstance(state.shard, Owned) and state.shard.here
