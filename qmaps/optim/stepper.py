"""Steps of an optimizer: describes them, chooses engines, and repeats what stays the same."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.cuda.plan import CudaSteps
from qmaps.engines.addresses import overlapping, plain
from qmaps.engines.native.at_exit import forget_at_exit
from qmaps.engines.native.plan import NativeEngine
from qmaps.engines.plan import same
from qmaps.engines.reference_plan import ReferenceEngine
from qmaps.engines.sharding.shards import any_distributed, local
from qmaps.engines.step import Inputs, ParameterStep, Rule, StepEngine, StepPlan, run_together
from qmaps.ops.backends import cuda_engine_on, native_runs
from qmaps.optim.checks import check_gradient, check_states
from qmaps.optim.choice import settings_key
from qmaps.optim.describe import described
from qmaps.optim.entries import Entry, with_gradients
from qmaps.optim.nonfinite import leaves_out
from qmaps.optim.resets import every, reset
from qmaps.optim.rule import UpdateRule
from qmaps.optim.saved_states import take_in
from qmaps.optim.sharding import check_shard

if TYPE_CHECKING:
    from qmaps.optim.base import QuantizedOptimizer

_NATIVE, _REFERENCE = NativeEngine(), ReferenceEngine()


class Stepper:
    """Takes the steps of one optimizer, and keeps the plans of its engines.

    It holds no reference to its optimizer, so that it does not keep the optimizer alive.

    Attributes:
        observers: called with each update of a parameter that is kept as codes.
        left: number of parameters of the last step that no fused engine supported, and that the
            reference stepped.
    """

    def __init__(self) -> None:
        self.observers: tuple[Any, ...] = ()
        self.left = 0
        self._plans: dict[torch.device, _Repeated] = {}
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
        """Release the native engine's plans; the next step makes them again."""
        self._plans = {at: kept for at, kept in self._plans.items() if at.type != "cpu"}

    def unscales(self, optimizer: QuantizedOptimizer) -> bool:
        """Return True if engines divide all gradients by the scale of a `torch.amp.GradScaler`."""
        params = [param for group in optimizer.param_groups for param in group["params"]]
        return all(self._cuda_engine(optimizer, param.device) is not None for param in params)

    def step(self, optimizer: QuantizedOptimizer) -> None:
        """Take one step of all parameters that have gradients.

        Raises:
            NonFiniteError: a gradient holds NaN or infinity and `nonfinite` is "raise".
        """
        entries = with_gradients(optimizer)
        if not entries:
            return
        devices = {entry[1].device for entry in entries}
        # A single CUDA engine decides by itself whether to skip the step, unless others take part.
        alone = (
            len(devices) == 1
            and self._cuda_engine(optimizer, *devices) is not None
            and not any_distributed(entry[1] for entry in entries)
        )
        if leaves_out(optimizer, entries, skipping=not alone):
            self._skipped += 1
            return
        reset(optimizer, entries)
        plans: list[StepPlan] = []
        try:
            self._run(optimizer, entries, devices, plans, alone=alone)
        finally:
            for plan in plans:
                plan.leave_gradients()

    def _run(
        self,
        optimizer: QuantizedOptimizer,
        entries: list[Entry],
        devices: set[torch.device],
        plans: list[StepPlan],
        *,
        alone: bool,
    ) -> None:
        """Take a step, whose plans go into `plans`, unless an engine other than CUDA skips it."""
        scale = getattr(optimizer, "grad_scale", None)
        found_inf = getattr(optimizer, "found_inf", None)
        rule = Rule(optimizer.native_rule, optimizer.takes_norms, optimizer.advance)
        left: list[ParameterStep] = []
        fresh: dict[Tensor, dict[str, Any]] = {}
        for device in devices:
            here = entries
            if len(devices) > 1:
                here = [entry for entry in entries if entry[1].device == device]
            plan, rest = self._planned(optimizer, rule, device, here, fresh)
            if plan is not None:
                plans.append(plan)
            left += rest
        if left or not alone:
            # All engines must know whether one of them would skip the step.
            late = alone and leaves_out(optimizer, entries)
            if late or (found_inf is not None and float(found_inf) != 0):
                self._skipped += 1
                return
        self.left = len(left)
        if left:
            plans.append(_REFERENCE.plan(rule, left))
        groups = optimizer.param_groups
        stepping = {id(entry[2]) for entry in entries} if len(groups) > 1 else {id(groups[0])}
        scalars = [optimizer.step_scalars(g) if id(g) in stepping else {} for g in groups]
        inputs = Inputs(scalars, scale, found_inf)
        try:
            run_together(plans, inputs)
        finally:
            _store(optimizer, fresh)

    def _planned(
        self,
        optimizer: QuantizedOptimizer,
        rule: Rule,
        device: torch.device,
        entries: list[Entry],
        fresh: dict[Tensor, dict[str, Any]],
    ) -> tuple[StepPlan | None, list[ParameterStep]]:
        """The plan of an engine for one device, and the parameters that no engine takes.

        States of parameters that have none yet go into `fresh`.
        """
        engine, kept = self._engine(optimizer, device), self._plans.get(device)
        # Only the reference divides gradients that are kept as codes by a scale.
        scaled = optimizer.steps_codes and getattr(optimizer, "grad_scale", None) is not None
        if engine is None or scaled or (kept is not None and kept.engine is not engine):
            kept = None
        if kept is not None and kept.fits(optimizer, entries, self.observers):
            return kept.plan, []
        for entry in entries:
            check_gradient(optimizer, entry)
            check_shard(optimizer, entry)
            take_in(optimizer, *entry[:3])
        # Autograd of complex numbers leaves negations to be done later.
        entries = [(*entry[:3], plain(entry[3], "a gradient")) for entry in entries]
        if kept is not None and kept.fits(optimizer, entries, self.observers):
            return kept.plan, []
        given = self._described(optimizer, entries, fresh)
        if engine is None:
            return None, given
        # An engine steps parameters at the same time; one that is given twice steps twice.
        shared = overlapping([each.param for each in given])
        takes = [
            index not in shared
            and not (scaled and each.codes is not None)
            and engine.supports(rule, each)
            for index, each in enumerate(given)
        ]
        taken = [each for each, took in zip(given, takes, strict=True) if took]
        left = [each for each, took in zip(given, takes, strict=True) if not took]
        plan = engine.plan(rule, taken)
        states = [each.storage for each in given]
        self._plans[device] = _Repeated(
            optimizer, engine, plan, entries, states, self.observers, whole=not left and not scaled
        )
        if engine is _NATIVE:
            forget_at_exit(self)
        return plan, left

    def _described(
        self,
        optimizer: QuantizedOptimizer,
        entries: Sequence[Entry],
        fresh: dict[Tensor, dict[str, Any]],
    ) -> list[ParameterStep]:
        """Descriptions of parameters for engines; their states are checked."""
        numbers = {id(group): number for number, group in enumerate(optimizer.param_groups)}
        given = []
        for entry in entries:
            _, param, group, _ = entry
            storage = optimizer.state.get(param)
            if storage is None:
                storage = fresh.setdefault(param, {})
            one = described(optimizer, entry, numbers[id(group)], storage, self.observers)
            check_states(one, tuple(param.shape))
            given.append(one)
        return given

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


def _store(optimizer: QuantizedOptimizer, fresh: dict[Tensor, dict[str, Any]]) -> None:
    """Give the optimizer the states that were created."""
    for param, storage in fresh.items():
        if storage:
            optimizer.state[param] = storage


class _Repeated:
    """A plan, and what it was made for.

    Args:
        optimizer: whose step is planned.
        engine: the engine that takes it.
        plan: the engine's plan.
        entries: the parameters of the step.
        states: the dicts that their states are stored in.
        observers: those that the plan shows updates to.
        whole: whether the plan is of all of them; others are described anew in each step.
    """

    def __init__(
        self,
        optimizer: QuantizedOptimizer,
        engine: StepEngine,
        plan: StepPlan,
        entries: Sequence[Entry],
        states: list[dict[str, Any]],
        observers: tuple[Any, ...],
        *,
        whole: bool,
    ) -> None:
        self.engine, self.plan = engine, plan
        self._settings = _settings(optimizer)
        self._all_groups = list(optimizer.param_groups)
        self._observers = observers
        self._numbers, self._params, self._groups, _ = zip(*entries, strict=True)
        self._sharded = any_distributed(self._params)
        self._states = states
        self._values = _values(self._states)
        # Fitted maps are looked at anew each time, for their refits.
        self._once = not whole or any(map(_fitted, self._values))

    def fits(
        self,
        optimizer: QuantizedOptimizer,
        entries: Sequence[Entry],
        observers: tuple[Any, ...],
    ) -> bool:
        """Return True if these are the parameters of the plan, and nothing about them has changed.

        If so, the next step of the plan takes their gradients.
        """
        if self._once or observers != self._observers or _settings(optimizer) != self._settings:
            return False
        numbers, params, groups, grads = zip(*entries, strict=True)
        if numbers != self._numbers or not same(optimizer.param_groups, self._all_groups):
            return False
        if not (same(params, self._params) and same(groups, self._groups)):
            return False
        states = list(map(optimizer.state.get, params))
        if not (same(states, self._states) and same(_values(self._states), self._values)):
            return False
        return self.plan.takes(list(map(local, params)) if self._sharded else params, grads)


def _settings(optimizer: QuantizedOptimizer) -> list[tuple[Any, ...]]:
    """The options of all groups that a plan depends on."""
    # Most rules have the same states whatever the options are.
    varies = type(optimizer).state_shapes is not UpdateRule.state_shapes
    return [
        (
            optimizer.states_of(group) if varies else (),
            *settings_key(group),
            group["stochastic_rounding"],
            group["master_weights"],
            group["seed"],
            group["nonfinite"],
            every(group),
        )
        for group in optimizer.param_groups
    ]


def _values(states: Sequence[dict[str, Any]]) -> list[Any]:
    return list(chain.from_iterable(map(dict.values, states)))


def _fitted(value: Any) -> bool:
    return isinstance(value, QuantizedTensor) and value.quantizer.map.counted
