"""Steps of an optimizer: descriptions for engines, the choice of engines, and cached plans."""

from __future__ import annotations

import atexit
import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import is_, itemgetter
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.cuda.plan import CudaSteps
from qmaps.engines.addresses import overlapping, plain
from qmaps.engines.native.plan import NativeEngine
from qmaps.engines.reference_plan import ReferencePlan
from qmaps.engines.sharding.exchange import Request, shared_scales
from qmaps.engines.sharding.shards import any_distributed, local
from qmaps.engines.step import (
    NONE_SHARED,
    Inputs,
    ParameterStep,
    Phases,
    Rule,
    Scalars,
    Scaled,
    StepEngine,
    StepPlan,
)
from qmaps.engines.triton.plan import TritonSteps
from qmaps.ops.backends import (
    cuda_engine_on,
    native_runs,
    reference_requested,
    requested,
    triton_engine_on,
)
from qmaps.ops.quantize import CODER
from qmaps.optim.checks import check_gradient, check_shard, check_states
from qmaps.optim.choice import choice_settings
from qmaps.optim.nonfinite import leaves_out
from qmaps.optim.records import Entry, ParameterRecord, Parameters, Place, states_of
from qmaps.optim.resets import begin_count, reset
from qmaps.optim.rule import MatrixRule, UpdateRule
from qmaps.optim.saved_states import take_in

_NATIVE = NativeEngine()


class Stepper:
    """Takes the steps of one optimizer, and caches the plans of its engines.

    It holds no reference to its optimizer, and does not keep it alive.

    Attributes:
        counts: number of parameters of the last step by engine, of the reference by reason.
    """

    def __init__(self, native_rule: str | None) -> None:
        self.counts: Mapping[str, int] = {}
        self._native_rule = native_rule
        self._cached: _PlannedStep | None = None
        self._cuda: dict[torch.device, CudaSteps] = {}
        self._triton: dict[torch.device, TritonSteps] = {}
        self._skipped = 0
        _steppers.add(self)

    @property
    def skipped(self) -> int:
        """Number of skipped steps; waits for CUDA devices."""
        return self._skipped + sum(engine.skipped for engine in self._cuda.values())

    @skipped.setter
    def skipped(self, count: int) -> None:
        self._skipped = count

    def forget_engine(self) -> None:
        """Release the engines' plans; the next step makes them again."""
        self._cached = None

    def unscales(self, groups: Sequence[dict[str, Any]]) -> bool:
        """Return True if engines divide all gradients by the scale of a `torch.amp.GradScaler`."""
        params = [param for group in groups for param in group["params"]]
        return all(self._cuda_engine(param.device) is not None for param in params)

    def step(
        self,
        parameters: Parameters,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
        *,
        only: Sequence[Place] | None = None,
    ) -> None:
        """Take one step of all parameters with gradients, or of those at some places.

        Raises:
            NonFiniteError: a gradient holds NaN or infinity and `nonfinite` is "raise".
        """
        self.counts = {}
        groups = parameters.groups
        entries = _with_gradients(groups) if only is None else _at_places(groups, only)
        if not entries:
            return
        # Only the reference divides gradients of parameters kept as codes.
        scaled = parameters.rule._steps_codes and grad_scale is not None
        settings = _settings(parameters, scaled)
        if self._cached is not None and self._cached.settings != settings:
            self._cached = None
        # Options that a rule refuses change no state.
        scalars = _scalars(parameters, entries)
        policed = _policed(parameters.groups) if self._cached is None else self._cached.policed
        if policed:
            entries = _localized(entries)
            if leaves_out(parameters, entries, skipping=not self._alone(entries)):
                self._skipped += 1
                return
            reset(parameters, entries)
        states: dict[Tensor, dict[str, Any]] = {}
        planned = self._cached
        if planned is None or not planned.fits(parameters, entries):
            entries = _localized(entries)
            records = parameters.records(only)
            if only is None:
                records = [records[entry[0]] for entry in entries]
            if parameters.state:
                take_in(parameters, records)
            planned = self._planned(parameters, entries, records, states, scaled)
            if not planned.reference_count and not scaled and planned is not self._cached:
                planned.remember(parameters, entries, settings, policed)
                self._cached = planned
        try:
            self._run(parameters, entries, planned, states, Inputs(scalars, grad_scale, found_inf))
        finally:
            for plan in planned.plans:
                plan.leave_gradients()

    def _run(
        self,
        parameters: Parameters,
        entries: list[Entry],
        planned: _PlannedStep,
        states: dict[Tensor, dict[str, Any]],
        inputs: Inputs,
    ) -> None:
        """Take a planned step, unless an engine other than CUDA skips it."""
        if planned.reference_count or not planned.alone:
            # All engines must know whether one of them would skip the step.
            skips = planned.alone and leaves_out(parameters, entries)
            if skips or (inputs.found_inf is not None and float(inputs.found_inf) != 0):
                self._skipped += 1
                return
        self.counts = planned.counts
        try:
            _run_together(planned.plans, inputs)
        finally:
            for param, storage in states.items():
                if "step" in storage:
                    parameters.state[param] = storage

    def _planned(
        self,
        parameters: Parameters,
        entries: list[Entry],
        records: Sequence[ParameterRecord],
        states: dict[Tensor, dict[str, Any]],
        scaled: bool,
    ) -> _PlannedStep:
        """A new plan of a step, or the cached one if it fits after all."""
        cached = self._cached
        for record, entry in zip(records, entries, strict=True):
            check_gradient(record, entry[3])
            if record.shard is not None:
                check_shard(record)
        # Autograd of complex numbers leaves negations to be done later.
        entries = [(*entry[:3], plain(entry[3], "a gradient")) for entry in entries]
        if cached is not None and cached.fits(parameters, entries):
            return cached
        self._cached = None
        steps = []
        for record, entry in zip(records, entries, strict=True):
            storage = parameters.state.get(record.param)
            if storage is None:
                storage = states.setdefault(record.param, {})
            begin_count(record, storage)
            steps.append(record.step(entry[3], storage))
            if storage:
                check_states(steps[-1], tuple(record.param.shape))
        return self._plan(parameters.rule, entries, steps, scaled)

    def _plan(
        self, optimizer: UpdateRule, entries: list[Entry], steps: list[ParameterStep], scaled: bool
    ) -> _PlannedStep:
        """Plan a step: engines of the parameters' devices, and the reference for the rest."""
        phases = None
        if isinstance(optimizer, MatrixRule):
            phases = Phases(optimizer.prepare, optimizer.transform, optimizer.finish)
        scalars = optimizer.step_scalars
        rule = Rule(
            optimizer.native_rule, optimizer.takes_norms, optimizer.advance, phases, scalars
        )
        # An engine steps parameters at the same time; one that is listed twice steps twice.
        shared = overlapping([step.param for step in steps])
        planned = _PlannedStep(self._alone(entries), [step.storage for step in steps])
        devices: dict[torch.device, list[int]] = {}
        for position, entry in enumerate(entries):
            devices.setdefault(entry[1].device, []).append(position)
        for_reference: list[ParameterStep] = []
        for device, positions in devices.items():
            engine = self._engine(device)
            supported: list[int] = []
            for position in positions:
                step = steps[position]
                if engine is None:
                    reason = self._without_engine(device)
                elif position in shared:
                    reason = "it shares memory with another parameter"
                elif scaled and step.codes is not None:
                    reason = "its gradient is stored as codes and scaled"
                else:
                    reason = engine.unsupported_reason(rule, step)
                if reason:
                    for_reference.append(step)
                    planned.counts[f"reference: {reason}"] += 1
                else:
                    supported.append(position)
            if engine is not None and supported:
                planned.counts[engine.name] += len(supported)
                planned.plans.append(engine.plan(rule, [steps[at] for at in supported]))
                planned.positions.append(supported)
        if for_reference:
            planned.reference_count = len(for_reference)
            planned.plans.append(ReferencePlan(rule, for_reference, CODER))
        return planned

    def _alone(self, entries: Sequence[Entry]) -> bool:
        """Return True if one CUDA engine takes the whole step: it decides whether to skip it."""
        if self._cuda_engine(entries[0][1].device) is None:
            return False
        params = [entry[1] for entry in entries]
        return len({param.device for param in params}) == 1 and not any_distributed(params)

    def _engine(self, device: torch.device) -> StepEngine | None:
        """The fused engine for a device; None if there is no such engine."""
        if (cuda := self._cuda_engine(device)) is not None:
            return cuda
        if (found := triton_engine_on(device, also=self._native_rule is None)) is not None:
            return self._triton.setdefault(found, TritonSteps(found))
        if self._native_rule is None or device.type != "cpu" or not native_runs():
            return None
        return _NATIVE

    def _without_engine(self, device: torch.device) -> str:
        """Reason why a device has no fused engine for this rule."""
        if reference_requested():
            return "it was requested"
        if self._native_rule is None:
            return "its rule has no kernel"
        return f"no other engine runs on {device}"

    def _cuda_engine(self, device: torch.device) -> CudaSteps | None:
        engine = None if self._native_rule is None else cuda_engine_on(device)
        if engine is None:
            return None
        if engine.device not in self._cuda:
            self._cuda[engine.device] = CudaSteps(engine)
        return self._cuda[engine.device]


_steppers: WeakSet[Stepper] = WeakSet()


@atexit.register
def _forget_engines() -> None:
    """Release the plans of optimizers that are never freed, which would be reported as leaked.

    A hook of autograd with a reference to its optimizer closes a cycle that Python's garbage
    collector does not see.
    """
    for stepper in list(_steppers):
        stepper.forget_engine()


class _PlannedStep:
    """The plans of a step, with everything they depend on.

    Attributes:
        alone: True if one CUDA engine decides by itself whether to skip the step.
        plans: plans of fused engines, and of the reference.
        positions: for each fused engine, the positions of its parameters in the step.
        reference_count: number of parameters stepped by the reference.
        counts: number of parameters by engine, of the reference by reason.
        settings: result of `_settings`; empty before `remember`.
        policed: result of `_policed`.
    """

    def __init__(self, alone: bool, storages: list[dict[str, Any]]) -> None:
        self.alone = alone
        self._storages = storages
        self.plans: list[StepPlan] = []
        self.positions: list[list[int]] = []
        self.reference_count = 0
        self.counts: Counter[str] = Counter()
        self.settings: list[Any] = []
        self.policed = True

    def remember(
        self, parameters: Parameters, entries: Sequence[Entry], settings: list[Any], policed: bool
    ) -> None:
        """Record the parameters and settings of the plans, to use them again."""
        self.settings = [
            copy.deepcopy(value) if isinstance(value, dict) else value for value in settings
        ]
        self.policed = policed
        self._numbers, params, groups, _ = zip(*entries, strict=True)
        self._sharded = any_distributed(params)
        self._objects = self._parts(parameters, params, groups, self._storages)
        # Fitted maps are checked anew each time, for their refits.
        states = chain.from_iterable(map(dict.values, self._storages))
        self._fitted = any(
            state.quantizer.map.counted for state in states if isinstance(state, QuantizedTensor)
        )

    def fits(self, parameters: Parameters, entries: Sequence[Entry]) -> bool:
        """Return True if the plans can take a step with equal `settings`.

        If so, they take it with the gradients of `entries`. Groups, parameters and states are
        compared by identity, and their memory by the plans.
        """
        numbers, params, groups, gradients = zip(*entries, strict=True)
        if self._fitted or numbers != self._numbers:
            return False
        storages = list(map(parameters.state.get, params))
        objects = self._parts(parameters, params, groups, storages)
        if len(objects) != len(self._objects) or not all(map(is_, objects, self._objects)):
            return False
        if self._sharded:
            params, gradients = tuple(map(local, params)), tuple(map(local, gradients))
        for plan, positions in zip(self.plans, self.positions, strict=True):
            of_plan = list(map(params.__getitem__, positions))
            if not plan.takes(of_plan, list(map(gradients.__getitem__, positions))):
                for other in self.plans:
                    other.leave_gradients()
                return False
        return True

    def _parts(
        self,
        parameters: Parameters,
        params: Sequence[Tensor],
        groups: Sequence[dict[str, Any]],
        storages: Sequence[dict[str, Any] | None],
    ) -> list[Any]:
        """The groups, parameters and states of a step."""
        # If the dicts of the states are others, so are `storages`.
        values = chain.from_iterable(map(dict.values, self._storages))
        return [*parameters.groups, *params, *groups, *storages, *values]


def _with_gradients(groups: Sequence[dict[str, Any]]) -> list[Entry]:
    """Parameters of these groups with their gradients, where they have one."""
    entries: list[Entry] = []
    number = 0
    for group in groups:
        for param in group["params"]:
            if (gradient := param.grad) is not None:
                entries.append((number, param, group, gradient))
            number += 1
    return entries


def _at_places(groups: Sequence[dict[str, Any]], places: Sequence[Place]) -> list[Entry]:
    """`_with_gradients` of the parameters at these places."""
    params = [(place.number, groups[place.group], place.position) for place in places]
    entries = [(number, group["params"][at], group) for number, group, at in params]
    return [(*entry, entry[1].grad) for entry in entries if entry[1].grad is not None]


def _scalars(parameters: Parameters, entries: Sequence[Entry]) -> list[Scalars]:
    """The step scalars of each group; empty for groups that do not step."""
    groups, step_scalars = parameters.groups, parameters.rule.step_scalars
    stepping = {id(entry[2]) for entry in entries} if len(groups) > 1 else {id(groups[0])}
    return [step_scalars(group) if id(group) in stepping else {} for group in groups]


def _localized(entries: list[Entry]) -> list[Entry]:
    """The entries with the local parts of gradients."""
    if any_distributed(map(itemgetter(3), entries)):
        return [(*entry[:3], local(entry[3])) for entry in entries]
    return entries


def _policed(groups: Sequence[dict[str, Any]]) -> bool:
    """Return True if gradients are checked, or states are reset, before each step."""
    for group in groups:
        if group["nonfinite"] != "propagate" or group.get("reset_every") is not None:
            return True
    return False


def _settings(parameters: Parameters, scaled: bool) -> list[Any]:
    """Everything a plan depends on that is compared by value."""
    rule = parameters.rule
    # Most rules have the same states whatever the options are.
    varies = type(rule).state_shapes is not UpdateRule.state_shapes
    values = choice_settings(parameters.groups)
    values += requested(), scaled
    for group in parameters.groups:
        values += group["stochastic_rounding"], group["master_weights"], group["seed"]
        values += group["nonfinite"], group.get("reset_every")
        if varies:
            values.append(states_of(rule, group))
    return values


def _run_together(plans: Sequence[StepPlan], inputs: Inputs) -> None:
    """Take one step of several plans, with one exchange of the scales over other shards.

    Processes exchange the scales of the same states in the same order, even if different engines
    step a parameter on different processes.
    """
    asked: dict[Scaled, Request] = {}
    for plan in plans:
        asked |= plan.requests(inputs)
    shared = NONE_SHARED
    if asked:
        order = sorted(asked)
        scales = shared_scales([asked[scaled] for scaled in order])
        shared = dict(zip(order, scales, strict=True))
    for plan in plans:
        plan.run(inputs, shared)
