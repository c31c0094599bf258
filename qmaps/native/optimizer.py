"""Whole optimizer steps on the native engine: all parameters in one call."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from qmaps.fused import Entry, FusedStep, Plan, followed, rule_states
from qmaps.native import core, tensors


class NativeStep(FusedStep):
    """Parameters on the CPU."""

    def _follows(self, entry: Entry) -> bool:
        _, param, group, _ = entry
        if not followed(self._optimizer, entry, tensors.follows):
            return False
        names = self._optimizer.state_shapes(param, group)
        rule = (str(self._optimizer.native_rule), rule_states(self._optimizer, names))
        if rule not in _rules():
            return False
        own = [name for name in names if name not in self._optimizer.side_states]
        found = [self._optimizer.quantizer_of(name, param, group) for name in own]
        # Blocks of different log2 ranges need not line up.
        return len({q.normalizer for q in found if q is not None and q.normalizer.log_domain}) < 2

    def _planned(self, entries: list[Entry], taken: list[Entry]) -> Plan:
        return NativePlan(self._optimizer, entries, taken)


class NativePlan(Plan):
    """Parameters described to the engine's ``Step``."""

    _step: Any

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
        grads = [grad.contiguous() for grad in self._grads]
        self._step.run(
            self._places,
            [grad.data_ptr() for grad in grads],
            constants,
            [row[number] for number in numbers],
            steps,
            tensors.threads(self._numel),
        )

    def _describe(self, taken: list[Entry], names: list[tuple[str, ...]]) -> None:
        self._step = step = core.Step()
        for (number, param, group, grad), target, state, used in zip(
            taken, self._targets, self._states, names, strict=True
        ):
            step.add_parameter(
                self._optimizer.native_rule,
                rule_states(self._optimizer, used),
                target.numel(),
                tensors.DTYPES[target.dtype],
                tensors.DTYPES[grad.dtype],
            )
            if self._optimizer.rounds(param, group):
                rounding = self._optimizer.rounding_key(number, param, group)
                step.add_rounding(rounding.words())
            sides = self._optimizer.side_states.intersection(used)
            if sides:
                step.arrange_sides(list(param.shape))
            for name in used:
                value = state[name]
                if isinstance(value, Tensor):
                    if name in sides:
                        step.add_side_floats(value.data_ptr(), value.numel())
                    else:
                        step.add_floats(value.data_ptr())
                    continue
                q = value.quantizer
                key = self._optimizer.rounding_key(number, param, group, state=name)
                stored = (
                    tensors.codebook(q.map),
                    tensors.geometry(q.normalizer, value.shape),
                    value.packed.data_ptr(),
                    [scale.data_ptr() for scale in value.scales],
                    [key.words()] if q.stochastic else [],
                )
                if name in sides:
                    step.add_side_quantized(torch.Size(value.shape).numel(), *stored)
                else:
                    step.add_quantized(*stored)


@functools.cache
def _rules() -> frozenset[tuple[str, str]]:
    """The engine's rules: name and states."""
    return frozenset(core.rules())
