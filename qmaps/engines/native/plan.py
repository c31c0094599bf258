"""Whole optimizer steps on the native engine: all parameters in one call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from qmaps.algebra.quantized import QuantizedTensor
from qmaps.algebra.quantizer import Quantizer
from qmaps.engines.addresses import address
from qmaps.engines.native import core, tensors
from qmaps.engines.philox import RoundingKey
from qmaps.engines.plan import FusedPlan, fused_supports, readable
from qmaps.engines.rules import ordered, rules
from qmaps.engines.step import Inputs, ParameterStep, Rule, StepEngine, StepPlan
from qmaps.engines.step_scalars import StepScalar


class NativeEngine(StepEngine):
    """Steps on the CPU, in C++."""

    def supports(self, rule: Rule, given: ParameterStep) -> bool:
        """Whether it can step this parameter."""
        if (str(rule.name), given.kernel_states) not in rules():
            return False
        found = [state.quantizer for state in given.states if not state.factored]
        whole = {q.normalizer for q in found if q is not None and _whole_blocks(q, given)}
        # Blocks of different log2 ranges may have different boundaries.
        if len(whole) > (1 if given.codes is None else 0):
            return False
        if given.codes is not None and not _codes_supported(given):
            return False
        return fused_supports(rule, given, tensors.supports)

    def plan(self, rule: Rule, given: Sequence[ParameterStep]) -> StepPlan:
        """A plan for parameters that it supports; states that are missing are created."""
        return NativePlan(rule, given)


class NativePlan(FusedPlan):
    """Parameters described to the engine's ``Step``."""

    _step: Any

    def run(self, inputs: Inputs) -> None:
        """Take one step."""
        if not self._given:
            return
        self._counters += 1
        steps = list(map(int, self._counters.tolist()))
        # Parameters of one group that are at the same step since their reset share their scalars.
        since = [given.since_reset(step) for given, step in zip(self._given, steps, strict=True)]
        kinds = list(zip(self._groups, since, strict=True))
        row = {kind: index for index, kind in enumerate(dict.fromkeys(kinds))}
        scalars = [
            [
                value.at(step) if isinstance(value, StepScalar) else value
                for value in ordered(self._rule, inputs.scalars[group])
            ]
            for group, step in row
        ]
        gradients_at, copies = self._gradients_at()
        self._step.run(
            self._targets_at(),
            gradients_at,
            scalars,
            list(map(row.__getitem__, kinds)),
            steps,
            tensors.threads(self._numel),
        )
        del copies  # the engine reads them until here
        self._round_masters()

    def _describe(self) -> None:
        self._groups = [given.group for given in self._given]
        self._step = core.Step()
        for index, (given, target) in enumerate(zip(self._given, self._targets, strict=True)):
            self._add(given, target)
            if index in self._masters and _rounded_here(given.param):
                self._step.add_rounded(address(given.param))
                del self._masters[index]

    def _add(self, given: ParameterStep, target: Tensor) -> None:
        step, gradient = self._step, given.gradient
        coded = given.codes is not None
        step.add_parameter(
            self._rule,
            given.kernel_states,
            target.numel(),
            tensors.DTYPES[torch.float32 if coded else target.dtype],
            tensors.DTYPES[gradient.dtype if isinstance(gradient, Tensor) else torch.float32],
        )
        if given.codes is not None:
            assert isinstance(gradient, QuantizedTensor)
            step.add_parameter_codes(*_described(given.codes), _rounding(given.codes, given.key))
            step.add_gradient_codes(*_described(gradient))
        elif given.key is not None:
            step.add_rounding(given.key.words())
        self._add_states(given)

    def _add_states(self, given: ParameterStep) -> None:
        step = self._step
        if any(state.factored for state in given.states):
            step.arrange_factored(list(given.param.shape))
        for state in given.states:
            value = given.storage[state.name]
            if isinstance(value, Tensor):
                if state.factored:
                    step.add_factored_floats(address(value), value.numel())
                else:
                    step.add_floats(address(value))
                continue
            stored = (*_described(value), _rounding(value, state.key))
            if state.factored:
                step.add_factored_quantized(torch.Size(value.shape).numel(), *stored)
            else:
                step.add_quantized(*stored)


def _rounded_here(param: Tensor) -> bool:
    """Whether the engine itself rounds the master copy into this parameter."""
    return param.dtype == torch.bfloat16 and param.is_contiguous()


def _codes_supported(given: ParameterStep) -> bool:
    """Whether the engine supports a parameter and a gradient that are kept as codes."""
    codes, gradient, param = given.codes, given.gradient, given.param
    assert codes is not None
    whole = param.device.type == "cpu" and param.dtype == torch.float32 and param.numel() > 0
    return (
        whole
        and not given.observers
        and isinstance(gradient, QuantizedTensor)
        and _local(codes)
        and _supported(gradient)
    )


def _supported(t: QuantizedTensor) -> bool:
    return readable(t) and tensors.supports(t.quantizer.normalizer, t.quantizer.map, t.shape)


def _whole_blocks(q: Quantizer, given: ParameterStep) -> bool:
    """Whether scales are computed from all elements of a block at once, unlike maxima."""
    found = q.normalizer.geometry(tuple(given.param.shape))
    return found is not None and (found.log or any(part.rms for part in found.parts))


def _local(t: QuantizedTensor) -> bool:
    """Whether each scale belongs to one block, short enough to be encoded by itself."""
    found = t.quantizer.normalizer.geometry(t.shape)
    if not _supported(t) or found is None or found.log or len(found.parts) != 1:
        return False
    part = found.parts[0]
    comes_again = part.divisor * part.count < math.prod(t.shape)
    whole = part.divisor * (8 if part.divisor % 8 else 1)
    return part.plain and not part.rms and not comes_again and whole <= tensors.LONGEST_BLOCK


def _described(t: QuantizedTensor) -> tuple[Any, ...]:
    """Codebook, geometry and addresses of a tensor whose codes and scales are contiguous."""
    q = t.quantizer
    return tensors.stored(t.packed, t.scales, q.normalizer, q.map, t.shape)


def _rounding(t: QuantizedTensor, key: RoundingKey | None) -> list[tuple[int, ...]]:
    """The words of `key` in a list; an empty list where `t` is rounded to the nearest."""
    return [key.words()] if t.quantizer.rounding.random and key is not None else []
