"""Steps of an optimizer: descriptions for engines, the choice of engines, and cached plans."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import chain
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qmaps.algebra.quantized import QuantizedTensor
from qmaps.cuda.plan import CudaSteps
from qmaps.distributed.shards import any_distributed, local
from qmaps.engines.addresses import overlapping, plain
from qmaps.engines.backends import cuda_engine_on, native_runs, requested
from qmaps.engines.native.at_exit import forget_at_exit
from qmaps.engines.native.plan import NativeEngine
from qmaps.engines.reference_plan import ReferenceEngine
from qmaps.engines.step import (
    Inputs,
    ParameterStep,
    Rule,
    StepEngine,
    StepPlan,
    run_together,
)
from qmaps.optim.checks import check_gradient, check_shard, check_states
from qmaps.optim.choice import choice_settings
from qmaps.optim.nonfinite import leaves_out
from qmaps.optim.records import Entry, ParameterRecord, with_gradients
from qmaps.optim.resets import reset
from qmaps.optim.rule import UpdateRule
from qmaps.optim.saved_states import take_in

if TYPE_CHECKING:
    from qmaps.optim.base import QuantizedOptimizer

_NATIVE, _REFERENCE = NativeEngine(), ReferenceEngine()


class Stepper:
    """Takes the steps of one optimizer, and caches the plans of its engines.

    It holds no reference to its optimizer, and does not keep it alive.

    Attributes:
        observers: called with each update of a parameter stored as codes.
        reference_count: number of parameters of the last step that the reference stepped.
    """

    def __init__(self) -> None:
        self.observers: tuple[Any, ...] = ()
        self.reference_count = 0
        self._cached: _PlannedStep | None = None
        self._cuda: dict[torch.device, CudaSteps] = {}
        self._skipped = 0

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

    def unscales(self, optimizer: QuantizedOptimizer) -> bool:
        """Return True if engines divide all gradients by the scale of a `torch.amp.GradScaler`."""
        params = [param for group in optimizer.param_groups for param in group["params"]]
        return all(self._cuda_engine(optimizer, param.device) is not None for param in params)

    def step(self, optimizer: QuantizedOptimizer) -> None:
        """Take one step of all parameters with gradients.

        Raises:
            NonFiniteError: a gradient holds NaN or infinity and `nonfinite` is "raise".
        """
        entries = with_gradients(optimizer.param_groups)
        if not entries:
            return
        settings = _settings(optimizer, self.observers)
        if self._cached is not None and self._cached.settings != settings:
            self._cached = None
        if self._cached is None or self._cached.policed:
            if leaves_out(optimizer, entries, skipping=not self._alone(optimizer, entries)):
                self._skipped += 1
                return
            reset(optimizer, entries)
        states: dict[Tensor, dict[str, Any]] = {}
        planned = self._planned(optimizer, entries, settings, states)
        try:
            self._run(optimizer, entries, planned, states)
        finally:
            for plan in planned.plans:
                plan.leave_gradients()

    def _run(
        self,
        optimizer: QuantizedOptimizer,
        entries: list[Entry],
        planned: _PlannedStep,
        states: dict[Tensor, dict[str, Any]],
    ) -> None:
        """Take a planned step, unless an engine other than CUDA skips it.

        Args:
            optimizer: the optimizer of the step.
            entries: the parameters of the step.
            planned: the plans of the step.
            states: states of new parameters; the optimizer gets them.
        """
        found_inf = getattr(optimizer, "found_inf", None)
        if planned.reference_count or not planned.alone:
            # All engines must know whether one of them would skip the step.
            skips = planned.alone and leaves_out(optimizer, entries)
            if skips or (found_inf is not None and float(found_inf) != 0):
                self._skipped += 1
                return
        self.reference_count = planned.reference_count
        groups = optimizer.param_groups
        stepping = {id(entry[2]) for entry in entries} if len(groups) > 1 else {id(groups[0])}
        scalars = [optimizer.step_scalars(g) if id(g) in stepping else {} for g in groups]
        inputs = Inputs(scalars, getattr(optimizer, "grad_scale", None), found_inf)
        try:
            run_together(planned.plans, inputs)
        finally:
            for param, storage in states.items():
                if storage:
                    optimizer.state[param] = storage

    def _planned(
        self,
        optimizer: QuantizedOptimizer,
        entries: list[Entry],
        settings: list[Any],
        states: dict[Tensor, dict[str, Any]],
    ) -> _PlannedStep:
        """The cached step if it fits, or a new one.

        New states go into `states`.
        """
        cached = self._cached
        if cached is not None and cached.fits(optimizer, entries):
            return cached
        records = [ParameterRecord(optimizer, *entry[:3]) for entry in entries]
        for record, entry in zip(records, entries, strict=True):
            check_gradient(record, entry[3])
            check_shard(record)
            take_in(record)
        # Autograd of complex numbers leaves negations to be done later.
        entries = [(*entry[:3], plain(entry[3], "a gradient")) for entry in entries]
        if cached is not None and cached.fits(optimizer, entries):
            return cached
        self._cached = None
        numbers = {id(group): number for number, group in enumerate(optimizer.param_groups)}
        steps = []
        for record, (_, param, group, gradient) in zip(records, entries, strict=True):
            storage = optimizer.state.get(param)
            if storage is None:
                storage = states.setdefault(param, {})
            steps.append(record.step(gradient, storage, numbers[id(group)], self.observers))
            check_states(steps[-1], tuple(param.shape))
        planned = self._plan(optimizer, entries, steps)
        if not planned.reference_count and not _scaled(optimizer):
            planned.remember(optimizer, entries, settings, [step.storage for step in steps])
            self._cached = planned
            forget_at_exit(self)
        return planned

    def _plan(
        self, optimizer: QuantizedOptimizer, entries: list[Entry], steps: list[ParameterStep]
    ) -> _PlannedStep:
        """Plan a step: engines of the parameters' devices, and the reference for the rest."""
        rule = Rule(optimizer.native_rule, optimizer.takes_norms, optimizer.advance)
        scaled = _scaled(optimizer)
        # An engine steps parameters at the same time; one that is listed twice steps twice.
        shared = overlapping([step.param for step in steps])
        planned = _PlannedStep(self._alone(optimizer, entries))
        devices: dict[torch.device, list[int]] = {}
        for position, (_, param, _, _) in enumerate(entries):
            devices.setdefault(param.device, []).append(position)
        for_reference: list[ParameterStep] = []
        for device, positions in devices.items():
            engine = self._engine(optimizer, device)
            supported: list[int] = []
            for position in positions:
                step = steps[position]
                if (
                    engine is None
                    or position in shared
                    or (scaled and step.codes is not None)
                    or not engine.supports(rule, step)
                ):
                    for_reference.append(step)
                else:
                    supported.append(position)
            if engine is not None and supported:
                planned.plans.append(engine.plan(rule, [steps[at] for at in supported]))
                planned.positions.append(supported)
        if for_reference:
            planned.reference_count = len(for_reference)
            planned.plans.append(_REFERENCE.plan(rule, for_reference))
        return planned

    def _alone(self, optimizer: QuantizedOptimizer, entries: Sequence[Entry]) -> bool:
        """Return True if one CUDA engine takes the whole step: it decides whether to skip it."""
        params = [entry[1] for entry in entries]
        return (
            self._cuda_engine(optimizer, params[0].device) is not None
            and len({param.device for param in params}) == 1
            and not any_distributed(params)
        )

    def _engine(self, optimizer: QuantizedOptimizer, device: torch.device) -> StepEngine | None:
        """The fused engine for a device; None if there is no such engine."""
        if (cuda := self._cuda_engine(optimizer, device)) is not None:
            return cuda
        if optimizer.native_rule is None or device.type != "cpu" or not native_runs():
            return None
        return _NATIVE

    def _cuda_engine(self, optimizer: QuantizedOptimizer, device: torch.device) -> CudaSteps | None:
        engine = None if optimizer.native_rule is None else cuda_engine_on(device)
        if engine is None:
            return None
        if engine.device not in self._cuda:
            self._cuda[engine.device] = CudaSteps(engine)
        return self._cuda[engine.device]


class _PlannedStep:
    """The plans of a step, with everything they depend on.

    Args:
        alone: True if one CUDA engine decides by itself whether to skip the step.

    Attributes:
        plans: plans of fused engines, and of the reference.
        positions: for each fused engine, the positions of its parameters in the step.
        reference_count: number of parameters stepped by the reference.
        settings: result of `_settings`; empty before `remember`.
        policed: True if gradients are checked, or states are reset, before each step.
    """

    def __init__(self, alone: bool) -> None:
        self.alone = alone
        self.plans: list[StepPlan] = []
        self.positions: list[list[int]] = []
        self.reference_count = 0
        self.settings: list[Any] = []
        self.policed = True

    def remember(
        self,
        optimizer: QuantizedOptimizer,
        entries: Sequence[Entry],
        settings: list[Any],
        storages: list[dict[str, Any]],
    ) -> None:
        """Record the parameters and settings of the plans, to use them again.

        Args:
            optimizer: the optimizer of the step.
            entries: the parameters of the step.
            settings: result of `_settings`.
            storages: the dicts of the parameters' states.
        """
        self.settings = [
            copy.deepcopy(value) if isinstance(value, dict) else value for value in settings
        ]
        self.policed = any(
            group["nonfinite"] != "propagate" or group.get("reset_every")
            for group in optimizer.param_groups
        )
        self._numbers, params, groups, _ = zip(*entries, strict=True)
        self._sharded = any_distributed(params)
        self._storages = storages
        self._objects = self._parts(optimizer, params, groups, storages)
        # Fitted maps are checked anew each time, for their refits.
        quantized = [value for value in self._objects if isinstance(value, QuantizedTensor)]
        self._fitted = any(value.quantizer.map.counted for value in quantized)

    def fits(self, optimizer: QuantizedOptimizer, entries: Sequence[Entry]) -> bool:
        """Return True if the plans can take a step with equal `settings`.

        If so, they take it with the gradients of `entries`. Groups, parameters and states are
        compared by identity, and their memory by the plans.
        """
        numbers, params, groups, gradients = zip(*entries, strict=True)
        if self._fitted or numbers != self._numbers:
            return False
        storages = list(map(optimizer.state.get, params))
        objects = self._parts(optimizer, params, groups, storages)
        if len(objects) != len(self._objects) or not all(map(is_, objects, self._objects)):
            return False
        if self._sharded:
            params = tuple(map(local, params))
        for plan, positions in zip(self.plans, self.positions, strict=True):
            of_plan = list(map(params.__getitem__, positions))
            if not plan.takes(of_plan, list(map(gradients.__getitem__, positions))):
                for other in self.plans:
                    other.leave_gradients()
                return False
        return True

    def _parts(
        self,
        optimizer: QuantizedOptimizer,
        params: Sequence[Tensor],
        groups: Sequence[dict[str, Any]],
        storages: Sequence[dict[str, Any] | None],
    ) -> list[Any]:
        """The groups, parameters and states of a step."""
        # If the dicts of the states are others, so are `storages`.
        values = chain.from_iterable(map(dict.values, self._storages))
        return [*optimizer.param_groups, *params, *groups, *storages, *values]


def _scaled(optimizer: QuantizedOptimizer) -> bool:
    """Return True if parameters kept as codes have gradients that must be divided by a scale.

    Only the reference does so.
    """
    return optimizer.steps_codes and getattr(optimizer, "grad_scale", None) is not None


def _settings(optimizer: QuantizedOptimizer, observers: tuple[Any, ...]) -> list[Any]:
    """Everything a plan depends on that is compared by value."""
    # Most rules have the same states whatever the options are.
    varies = type(optimizer).state_shapes is not UpdateRule.state_shapes
    values = choice_settings(optimizer.param_groups)
    values += requested(), observers, _scaled(optimizer)
    for group in optimizer.param_groups:
        values += group["stochastic_rounding"], group["master_weights"], group["seed"]
        values += group["nonfinite"], group.get("reset_every")
        if varies:
            values.append(optimizer.states_of(group))
    return values
