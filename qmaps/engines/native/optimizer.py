"""Whole optimizer steps on the native engine: all parameters in one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qmaps.algebra.quantized import QuantizedTensor
from qmaps.engines.addresses import address
from qmaps.engines.fused import Entry, FusedStep, Plan, followed, rule_states
from qmaps.engines.native import core, tensors
from qmaps.engines.philox import RoundingKey
from qmaps.engines.rules import ordered, rules

if TYPE_CHECKING:
    from qmaps.optim.base import QuantizedOptimizer


class NativeStep(FusedStep):
    """Parameters on the CPU."""

    def _follows(self, entry: Entry) -> bool:
        _, param, group, _ = entry
        if not followed(self._optimizer, entry, tensors.follows):
            return False
        names = self._optimizer.state_shapes(param, group)
        rule = (str(self._optimizer.native_rule), rule_states(self._optimizer, names))
        if rule not in rules():
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
        steps = list(map(int, self._counters.tolist()))
        # Parameters of one group that are at the same step share their constants.
        kinds = list(zip(map(id, self._groups), steps, strict=True))
        groups = dict(zip(kinds, self._groups, strict=True))
        row = {kind: index for index, kind in enumerate(groups)}
        rule = str(self._optimizer.native_rule)
        constants = [
            ordered(rule, self._optimizer.scalars(group, step))
            for (_, step), group in groups.items()
        ]
        gradients_at, copies = self._gradients_at()
        self._step.run(
            self._targets_at(),
            gradients_at,
            constants,
            list(map(row.__getitem__, kinds)),
            steps,
            tensors.threads(self._numel),
        )
        del copies  # they were needed until here

    def _describe(self, taken: list[Entry], names: list[tuple[str, ...]]) -> None:
        self._step = step = core.Step()
        for (number, param, group, grad), target, used in zip(
            taken, self._targets, names, strict=True
        ):
            step.add_parameter(
                self._optimizer.native_rule,
                rule_states(self._optimizer, used),
                target.numel(),
                tensors.DTYPES[target.dtype],
                tensors.DTYPES[grad.dtype],
            )
            if self._optimizer.rounds(param, group):
                key = self._optimizer.rounding_key(number, param, group)
                step.add_rounding(key.words())
            add_states(step, self._optimizer, number, param, group, used)


def add_states(
    step: Any,
    optimizer: QuantizedOptimizer,
    number: int,
    param: Tensor,
    group: dict[str, Any],
    names: tuple[str, ...],
) -> None:
    """Describe a parameter's states to the engine's ``Step``.

    Args:
        step: the ``Step``; the states go to the parameter that was added to it last.
        optimizer: the optimizer, which holds the states.
        number: the number of the parameter, for stochastic rounding.
        param: the parameter.
        group: the options of its group.
        names: the names of its states, in the order of the rule.
    """
    sides = optimizer.side_states.intersection(names)
    if sides:
        step.arrange_sides(list(param.shape))
    for name in names:
        value = optimizer.state[param][name]
        if isinstance(value, Tensor):
            if name in sides:
                step.add_side_floats(address(value), value.numel())
            else:
                step.add_floats(address(value))
            continue
        key = optimizer.rounding_key(number, param, group, state=name)
        stored = (*described(value), rounding(value, key))
        if name in sides:
            step.add_side_quantized(torch.Size(value.shape).numel(), *stored)
        else:
            step.add_quantized(*stored)


def described(t: QuantizedTensor) -> tuple[Any, ...]:
    """Codebook, geometry and addresses of a tensor whose codes and scales are contiguous."""
    q = t.quantizer
    return tensors.stored(t.packed, t.scales, q.normalizer, q.map, t.shape)


def rounding(t: QuantizedTensor, key: RoundingKey) -> list[tuple[int, ...]]:
    """The words of `key` in a list; an empty list where `t` is rounded to nearest."""
    return [key.words()] if t.quantizer.stochastic else []
