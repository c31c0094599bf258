"""Whole optimizer steps in Triton: a launch for all parameters of one kind.

The host knows the number of each step and computes the step scalars, so it does not wait for the
device: it reads the counters once, and again after something else has changed them. For the same
reason a step cannot be recorded in a CUDA graph, which would repeat the numbers of one step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakMethod

import torch
from torch import Tensor

from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.engines.addresses import address
from qmaps.engines.plan import FusedPlan
from qmaps.engines.sharding.exchange import SharedScales
from qmaps.engines.step import (
    NONE_SHARED,
    Inputs,
    ParameterStep,
    Rule,
    Scalars,
    Scaled,
    StepEngine,
    StepPlan,
)
from qmaps.engines.step_scalars import product_after, values_at
from qmaps.engines.support import TRITON
from qmaps.engines.triton import source
from qmaps.engines.triton.engine import capturing, launch, on, upload
from qmaps.engines.triton.source import ALIGNED, DTYPES, Kind, StateKind, noise_words
from qmaps.engines.triton.trace import Trace, UntraceableError, trace
from qmaps.errors import BackendError

Row = tuple[int, int, int, float | None]
"""What step scalars depend on: group, step since the last reset, step, and product of momenta."""


class TritonSteps(StepEngine):
    """Steps of one optimizer on one device."""

    name = "triton"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._known: dict[Any, str] = {}

    def unsupported_reason(self, rule: Rule, parameter: ParameterStep) -> str:
        reason = next(TRITON.of_parameter(rule, parameter, self._device), "")
        return reason or self._untraceable(rule, parameter)

    def plan(self, rule: Rule, parameters: Sequence[ParameterStep]) -> StepPlan:
        return TritonPlan(rule, parameters, self._device)

    def _untraceable(self, rule: Rule, parameter: ParameterStep) -> str:
        """Reason why the rule cannot be traced, in its first step or later."""
        assert rule.step_scalars is not None  # of optimizers
        scalars = rule.step_scalars(dict(parameter.options))
        names = tuple(state.name for state in parameter.states)
        for step in (1, 2):
            values = _values(scalars, step, parameter.product)
            key = names, tuple(values.items())
            if key not in self._known:
                try:
                    trace(rule.apply, names, values)
                    self._known[key] = ""
                except UntraceableError as error:
                    self._known[key] = f"its rule cannot be traced: {error}"
            if self._known[key]:
                return self._known[key]
        return ""


class _Counts:
    """The numbers in a tensor on a device, read again only if others have changed them."""

    def __init__(self, numbers: Tensor) -> None:
        self._numbers, self._version = numbers, -1
        self._known: list[float] = []

    def read(self) -> list[float]:
        if self._numbers._version != self._version:
            self.changed_to(self._numbers.tolist())
        return self._known

    def changed_to(self, known: list[float]) -> None:
        """Take note that the tensor was changed to these numbers."""
        self._known, self._version = known, self._numbers._version


@dataclass(frozen=True)
class _Described:
    """A parameter as kernels see it: its kind, a row of the table, and tables of its maps."""

    kind: Kind
    states: tuple[str, ...]
    maps: tuple[Tensor, ...]
    row: tuple[int, ...]
    aligned: bool


@dataclass(eq=False)
class _Batch:
    """Parameters of one kind at the same step, stepped by one launch.

    Attributes:
        first: a member.
        members: numbers of the parameters.
        table: a row of each.
        launches: the result of `source.tiles_of`.
        gradients_at: addresses of the gradients, and `gradients` the same on the device.
    """

    first: _Described
    members: list[int]
    table: Tensor
    launches: list[tuple[Kind, Tensor]]
    gradients_at: list[int]
    gradients: Tensor


class TritonPlan(FusedPlan):
    """Parameters and their states, described in the memory of the device."""

    def __init__(
        self, rule: Rule, parameters: Sequence[ParameterStep], device: torch.device
    ) -> None:
        self._device = device
        # Not the rule itself: it may refer to its optimizer, which keeps this plan.
        self._apply: Callable[[], Any] = (
            WeakMethod(rule.apply) if hasattr(rule.apply, "__self__") else lambda: rule.apply
        )
        self._traces: dict[tuple[str, ...], list[Trace]] = {}
        self._together_at: list[int] = []
        self._batches: list[_Batch] = []
        super().__init__(rule, parameters)
        self._steps, self._momenta = _Counts(self._counters), _Counts(self._products)

    def run(self, inputs: Inputs, shared: Mapping[Scaled, SharedScales] = NONE_SHARED) -> None:
        if not self._parameters:
            return
        if capturing(self._device):
            raise BackendError(
                "the Triton engine cannot record step() in a CUDA graph, which would repeat the "
                "numbers of one step; step outside the graph, or use the CUDA engine"
            )
        steps = [int(count) + 1 for count in self._steps.read()]
        products: Sequence[float | None] = self._momenta.read() or [None] * len(steps)
        rows: list[Row] = [
            (parameter.group, parameter.since_reset(step), step, product)
            for parameter, step, product in zip(self._parameters, steps, products, strict=True)
        ]
        numbers: dict[Row, int] = {}
        together = [numbers.setdefault(row, len(numbers)) for row in rows]
        if together != self._together_at:  # a launch has one set of scalars
            self._batches, self._together_at = self._split(together), together
        gradients_at, copies = self._gradients_at()
        with on(self._device):
            for batch in self._batches:
                self._launch(batch, rows[batch.members[0]], gradients_at, inputs)
        del copies  # the kernels read them until here
        self._counters += 1
        self._steps.changed_to([float(step) for step in steps])
        if self._products.numel():
            after = [product_after(inputs.scalars[r[0]].values(), r[1], r[3]) or 0.0 for r in rows]
            self._products.copy_(upload(after, torch.float32, self._device))
            self._momenta.changed_to(after)
        self._round_masters()

    def _launch(self, batch: _Batch, row: Row, gradients_at: list[int], inputs: Inputs) -> None:
        group, since, step, product = row
        values = _values(inputs.scalars[group], since, product)
        traced = self._traced(batch.first.states, values)
        at = [gradients_at[member] for member in batch.members]
        if at != batch.gradients_at:
            batch.gradients = upload(at, torch.int64, self._device)
            batch.gradients_at = at
        scaled = inputs.grad_scale is not None
        scale = batch.gradients  # which no kernel reads as a scale
        if inputs.grad_scale is not None:
            scale = inputs.grad_scale.to(self._device, torch.float32)
        aligned = batch.first.aligned and not any(address % ALIGNED for address in at)
        scalars = traced.arguments(values)
        for kind, items in batch.launches:
            made = replace(kind, scaled=True) if scaled else kind
            tensors = batch.table, items, batch.gradients, scale
            launch(traced, made, tensors, step, scalars, batch.first.maps, aligned=aligned)

    def _traced(self, states: tuple[str, ...], values: Mapping[str, float]) -> Trace:
        known = self._traces.setdefault(states, [])
        for made in known:
            if made.holds(values):
                return made
        try:
            known.append(trace(self._apply(), states, values))
        except UntraceableError as error:
            raise BackendError(
                f"the Triton engine cannot take this step, {error}; QMAPS_BACKEND=reference can"
            ) from error
        return known[-1]

    def _describe(self) -> None:
        self._described = [
            self._described_one(parameter, target)
            for parameter, target in zip(self._parameters, self._targets, strict=True)
        ]

    def _described_one(self, parameter: ParameterStep, target: Tensor) -> _Described:
        row = [target.numel(), _at(target), 0, 0, *noise_words(parameter.key)]
        kinds: list[StateKind] = []
        maps: list[Tensor] = []
        starts = [_at(target)]
        for state in parameter.states:
            value = parameter.storage[state.name]
            if isinstance(value, QuantizedTensor):
                q = value.quantizer
                kinds.append(source.kind_of(q, tuple(value.shape)))
                maps += source.tables_of(q.map, q.rounding, self._device)
                key = None if state.key is None else q.noise(state.key)
                row += [_at(value.packed), _at(value.scales[0]), *noise_words(key)]
                starts.append(_at(value.packed))
            else:
                kinds.append(source.PLAIN)
                row += [_at(value), 0, 0, 0, 0, 0]
                starts.append(_at(value))
        stride = source.stride_of(kinds, target.numel())
        assert isinstance(parameter.gradient, Tensor)
        kind = Kind(
            DTYPES[target.dtype],
            DTYPES[parameter.gradient.dtype],
            tuple(kinds),
            stride,
            rounds=parameter.key is not None,
        )
        names = tuple(state.name for state in parameter.states)
        aligned = stride % source.TILE == 0 and not any(start % ALIGNED for start in starts)
        return _Described(kind, names, tuple(maps), tuple(row), aligned)

    def _split(self, together: Sequence[int]) -> list[_Batch]:
        """Batches of parameters of one kind with equal step scalars."""
        members: dict[Any, list[int]] = {}
        for index, (one, number) in enumerate(zip(self._described, together, strict=True)):
            if one.row[0]:
                identity = one.kind, one.states, tuple(map(id, one.maps)), one.aligned, number
                members.setdefault(identity, []).append(index)
        return list(map(self._batch, members.values()))

    def _batch(self, members: list[int]) -> _Batch:
        described = [self._described[index] for index in members]
        numels = [one.row[0] for one in described]
        launches = source.tiles_of(described[0].kind, numels, self._device)
        table = torch.tensor([one.row for one in described], dtype=torch.int64)
        nothing = torch.zeros(0, dtype=torch.int64)
        return _Batch(described[0], members, table.to(self._device), launches, [], nothing)


def _values(scalars: Scalars, step: int, product: float | None) -> dict[str, float]:
    """Step scalars rounded to float32, as rules see them."""
    exact = torch.tensor(values_at(scalars.values(), step, product), dtype=torch.float64)
    return dict(zip(scalars, exact.float().tolist(), strict=True))


def _at(x: Tensor) -> int:
    return address(x) if x.numel() else 0
