"""Descriptions of optimizer steps for engines: one step of many parameters, as data.

An optimizer describes its step once (`ParameterStep`, `Rule`) and passes the values of each step
(`Inputs`). An engine (`StepEngine`) plans the step of supported parameters. Its plan takes the step
as long as the description does not change. A description does not refer to the optimizer, and an
engine uses only the description.

States are stored in place: `ParameterStep.storage` is the optimizer's dict of a
parameter's states. Everything else in a description is not changed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.quantizer import QuantizedTensor, Quantizer
from qmaps.engines.sharding.exchange import Request, SharedScales, spans_shards
from qmaps.engines.sharding.owners import Matrix
from qmaps.engines.sharding.shards import Shard
from qmaps.engines.step_scalars import StepScalar
from qmaps.normalize.base import Normalizer

COUNTER = torch.float64
"""The dtype of step counters; float32, which torch uses, cannot count beyond 2**24."""

RESET = "reset_step"
"""The step of a parameter's last reset, among its states, where `reset_every` is set.

Before the first reset it is 0, or absent in states of versions up to 0.3."""

PRODUCT = "mu_product"
"""The product of NAdam's momenta so far, among a parameter's states: float32, as torch has it."""

MOMENTS = ("exp_avg", "exp_avg_sq")
"""Adam's moments, whose updates depend on the number of steps."""

COUNTS = ("step", RESET)
"""States that count steps."""

NUMBERS = (*COUNTS, PRODUCT)
"""States that are single numbers, which shards have whole."""

FACTORED = "factored"
"""The word for all factored statistics in a kernel's list of states."""

Scaled = tuple[int, str]
"""A state whose scales are shared: its parameter's number among all, and its name."""

NONE_SHARED: Mapping[Scaled, SharedScales] = MappingProxyType({})

Shape = tuple[int, ...]
Scalars = Mapping[str, "float | StepScalar"]
"""The numbers that a rule needs besides tensors, by name; some depend on the step."""


class Context(NamedTuple):
    """The parameter and the step passed to a rule by the reference.

    `number` is the parameter's among all of all groups, from 0 on; `step` is counted from 1 on,
    after a reset of the states from 1 again; `group` has the options of its parameter group.
    """

    number: int
    step: int
    group: Mapping[str, Any]


Apply = Callable[[Context, Tensor, Tensor, dict[str, Tensor], dict[str, float]], None]


class Phases(NamedTuple):
    """A rule in three parts, for a sharded parameter: those of `MatrixRule`."""

    prepare: Callable[[Context, Tensor, dict[str, Tensor], dict[str, float]], Tensor]
    transform: Callable[[Context, Tensor, dict[str, Tensor], dict[str, float]], Tensor]
    finish: Callable[[Context, Tensor, Tensor, dict[str, float]], None]


@dataclass(frozen=True)
class Rule:
    """An update rule.

    Attributes:
        name: its name in kernels; None if there are none.
        apply: the rule in plain PyTorch, for the reference: changes a float32 parameter and its
            states in place, given the gradient and the scalars rounded to float32.
        phases: `apply` in parts, where it needs whole matrices.
        step_scalars: the scalars of a parameter group from its options.
    """

    name: str | None
    takes_norms: bool
    apply: Apply
    phases: Phases | None = None
    step_scalars: Callable[[dict[str, Any]], Scalars] | None = None


@dataclass(frozen=True, eq=False)
class StateStep:
    """One state of one parameter; of a shard this process's part.

    Attributes:
        key: of random rounding, for step 0; None for a quantizer that never rounds at random.
        initial: the value of all elements before the first step.
        factored: whether it is a statistic with fewer elements than the parameter, computed by
            kernels.
    """

    name: str
    shape: Shape
    quantizer: Quantizer | None
    key: RoundingKey | None
    initial: float = 0.0
    factored: bool = False
    shard: Shard | None = None


@dataclass(frozen=True, eq=False)
class ParameterStep:
    """One parameter in a step; of a sharded one the tensors of this process.

    Attributes:
        number: its number among all parameters of all groups, from 0 on.
        label: how messages name it.
        codes: its values as codes, where it is kept in low precision; the rule updates these.
        gradient: of the shape of `param`; codes where it is kept in low precision.
        storage: the dict of its states, by name, with `step`.
        group: the number of its parameter group, for `Inputs.scalars`.
        skips: whether the whole step is left out where this gradient is not finite.
        key: rounds new values stochastically, for step 0; None rounds to the nearest.
        master: whether the rule updates a float32 copy (`qmaps.engines.masters`).
        remainder: the dtype of the remainder updated together with the bfloat16 parameter
            (`qmaps.engines.bfloat16`); None if there is none.
        product: initial value of `PRODUCT` in `storage`; None if it is there, or not needed.
        matrices: those that this process and others have parts of, where the rule needs them whole:
            one, or those of a stack.
    """

    number: int
    label: str
    param: Tensor
    codes: QuantizedTensor | None
    gradient: Tensor | QuantizedTensor
    states: tuple[StateStep, ...]
    storage: dict[str, Any]
    group: int
    options: Mapping[str, Any]
    refit_every: int
    skips: bool
    key: RoundingKey | None
    master: bool
    remainder: torch.dtype | None
    shard: Shard | None
    product: float | None = None
    matrices: tuple[Matrix, ...] = ()

    def since_reset(self, step: int) -> int:
        """The number of a step, from 1 on, counted from the last reset, for step scalars."""
        return step - int(self.storage.get(RESET, 0))

    @cached_property
    def kernel_states(self) -> str:
        """The states as kernels name them: ``"exp_avg factored"``."""
        names = [state.name for state in self.states if not state.factored]
        return " ".join(names if len(names) == len(self.states) else [*names, FACTORED])


def spanning_states(parameter: ParameterStep) -> list[tuple[StateStep, Normalizer, Shard]]:
    """States with scales over other processes' shards."""
    spanning = []
    for state in parameter.states:
        q, shard = state.quantizer, state.shard
        if q is not None and shard is not None and spans_shards(q.normalizer, shard):
            spanning.append((state, q.normalizer, shard))
    return spanning


@dataclass(frozen=True, eq=False)
class Inputs:
    """The values of one step.

    Attributes:
        scalars: step scalars of each parameter group, in the order of the optimizer's groups.
        grad_scale: a tensor with one element, by which gradients are divided; or None.
        found_inf: a tensor with one element; the step is skipped if it is not 0; or None.
            Only engines that can read it on their device use it.
    """

    scalars: Sequence[Scalars]
    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None


class StepPlan(ABC):
    """The step of some parameters, to be taken any number of times."""

    @abstractmethod
    def takes(self, params: Sequence[Tensor], gradients: Sequence[Tensor]) -> bool:
        """Return True if the next step can be taken by this plan; if so, with these gradients."""

    def requests(self, inputs: Inputs) -> dict[Scaled, Request]:
        """Begin the next step, up to the results of other processes.

        Returns:
            New scales over other processes' shards; none by default.
        """
        return {}

    @abstractmethod
    def run(self, inputs: Inputs, shared: Mapping[Scaled, SharedScales] = NONE_SHARED) -> None:
        """Take one step."""

    def leave_gradients(self) -> None:  # noqa: B027
        """Keep the gradients no longer: their step has ended, or will not be taken."""


class StepEngine(ABC):
    """An engine for optimizer steps.

    Attributes:
        name: its name in `qmaps.backends`.
    """

    name: ClassVar[str]

    @abstractmethod
    def unsupported_reason(self, rule: Rule, parameter: ParameterStep) -> str:
        """Reason why the engine does not step a parameter; empty if it does."""

    @abstractmethod
    def plan(self, rule: Rule, parameters: Sequence[ParameterStep]) -> StepPlan:
        """A plan for supported parameters; missing states are created."""


def codes_of(x: object) -> QuantizedTensor | None:
    """Codes of a parameter or gradient in low precision; None for all others."""
    codes = getattr(x, "codes", None)
    return codes if isinstance(codes, QuantizedTensor) else None


def start_product(parameter: ParameterStep) -> None:
    """Create `PRODUCT` where a rule needs it and the parameter does not have it yet."""
    if parameter.product is not None:
        parameter.storage.setdefault(PRODUCT, torch.tensor(parameter.product, dtype=torch.float32))
