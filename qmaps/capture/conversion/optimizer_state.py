"""The common form of all conversions: states by family of optimizers, in no library's layout."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from qmaps import optim
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.errors import BadValueError, CaptureError, nearest
from qmaps.optim import QuantizedOptimizer
from qmaps.optim.rule import in_parameters_shape


@dataclass(frozen=True)
class Family:
    """Optimizers with the same states, the first moment first.

    `optional` are the states of some options only. Where the rule divides the first moment by the
    root of the second, `moments` names both. `counted` is False for rules that do without the
    number of steps.
    """

    name: str
    states: tuple[str, ...]
    signed: frozenset[str]
    optional: frozenset[str] = frozenset()
    moments: tuple[str, str] | None = None
    counted: bool = True


FAMILIES = {
    family.name: family
    for family in (
        Family(
            "adam",  # AdamW and LAMB as well
            ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
            frozenset({"exp_avg"}),
            frozenset({"max_exp_avg_sq"}),
            ("exp_avg", "exp_avg_sq"),
        ),
        Family(
            "ademamix",
            ("exp_avg", "exp_avg_slow", "exp_avg_sq"),
            frozenset({"exp_avg", "exp_avg_slow"}),
            moments=("exp_avg", "exp_avg_sq"),
        ),
        Family("lion", ("exp_avg",), frozenset({"exp_avg"}), counted=False),
        Family("sgd", ("momentum_buffer",), frozenset({"momentum_buffer"}), counted=False),
        Family(
            "rmsprop",
            ("square_avg", "momentum_buffer", "grad_avg"),
            frozenset({"momentum_buffer", "grad_avg"}),
            frozenset({"momentum_buffer", "grad_avg"}),
            counted=False,
        ),
        Family("adagrad", ("sum",), frozenset(), counted=False),
    )
}
"""Those that other libraries have; `_of_rules` adds what `qmaps.optim` has besides."""


def _with(names: set[str]) -> Family | None:
    """The first family with states of these names."""
    fits = (f for f in FAMILIES.values() if set(f.states) - f.optional <= names <= set(f.states))
    return next(fits, None)


def _of_rules() -> None:
    """Add a family for each rule with other states of the parameter's shape."""
    for name in optim.__all__:
        cls = getattr(optim, name)
        if not (isinstance(cls, type) and issubclass(cls, QuantizedOptimizer) and cls.state_names):
            continue
        if in_parameters_shape(cls.states) and _with(set(cls.state_names)) is None:
            fixed = cls.state_shapes is QuantizedOptimizer.state_shapes
            optional = frozenset() if fixed else frozenset(cls.state_names)
            family = Family(name.lower(), cls.state_names, cls.signed_states, optional)
            FAMILIES[family.name] = family


_of_rules()


def family(name: str) -> Family:
    """Return the family of a name, as in the option `optimizer`."""
    if name not in FAMILIES:
        raise BadValueError(
            f"optimizer={name!r} is unknown; allowed are "
            f"{', '.join(FAMILIES)}{nearest(name, FAMILIES)}"
        )
    return FAMILIES[name]


def family_of(names: Collection[str]) -> Family:
    """Return the first family with states of these names."""
    states = set(names)
    if (family := _with(states)) is not None:
        return family
    have = ", ".join(sorted(states)) if states else "no states"
    raise CaptureError(
        f"the checkpoint has {have}; only states of these optimizers can be converted: "
        f"{', '.join(FAMILIES)}"
    )


State = Tensor | QuantizedTensor
"""float32 values, or codes and scales as the source has them."""


@dataclass(frozen=True)
class Parameter:
    """One parameter's states by name; empty before the first step.

    Attributes:
        label: the name in reports.
        name: the parameter's own name; None where the checkpoint does not have it.
        step: number of steps taken; None where the optimizer does not count steps.
        states: the states by name.
        reset: the step of the last reset (`reset_every`); 0 without one.
        product: the product of NAdam's momenta; None where the checkpoint does not have it.
    """

    label: str
    name: str | None
    step: float | None
    states: dict[str, State]
    reset: float = 0.0
    product: float | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The parameter's shape, taken from a state; there must be one."""
        return tuple(next(iter(self.states.values())).shape)

    @property
    def numel(self) -> int:
        """The parameter's number of elements, taken from a state; there must be one."""
        return torch.Size(self.shape).numel()


@dataclass(frozen=True)
class Group:
    """A parameter group: options under torch's names, and its parameters with their keys."""

    options: dict[str, Any]
    keys: tuple[Any, ...]
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class OptimizerState:
    """A state_dict taken apart, with its further entries, and sentences for a report.

    `written_by` is the class that a checkpoint of qmaps names; empty for others.
    """

    family: Family
    groups: tuple[Group, ...]
    rest: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    written_by: str = ""

    @property
    def rule(self) -> str:
        """Class of `qmaps.optim` that takes steps from these states; empty if there is none.

        Checkpoints of qmaps name it, and groups of torch tell Adam, AdamW and NAdam apart.
        """
        rules = optim.rules()
        bases = getattr(getattr(optim, self.written_by, None), "__mro__", ())
        if named := [base.__name__ for base in bases if base in rules.values()]:
            return str(named[0])
        if self.family.name != "adam":
            return next((name for name in rules if name.lower() == self.family.name), "")
        options = [group.options for group in self.groups]
        if any("momentum_decay" in each for each in options):
            return "NAdam"
        coupled = any(each.get("decoupled_weight_decay") is False for each in options)
        return "Adam" if coupled else "AdamW"

    def parameters(self) -> Iterator[Parameter]:
        """Every parameter, in order."""
        for group in self.groups:
            yield from group.parameters

    def quantized(self) -> list[QuantizedTensor]:
        """Every quantized state."""
        states = (state for parameter in self.parameters() for state in parameter.states.values())
        return [state for state in states if isinstance(state, QuantizedTensor)]

    def without_resets(self) -> OptimizerState:
        """Return a copy with steps counted from the last reset, and a note where there was one.

        Bias corrections are those of the steps since then. The total number of steps and the period
        of resets are lost.
        """
        reset = [parameter for parameter in self.parameters() if parameter.reset]
        if not reset:
            return self

        def since_reset(parameter: Parameter) -> Parameter:
            step = None if parameter.step is None else parameter.step - parameter.reset
            return replace(parameter, step=step, reset=0.0)

        note = (
            f"the states of {len(reset)} parameters were reset (reset_every); their step is the "
            "number of steps since then"
        )
        return replace(self._changed(since_reset), notes=(*self.notes, note))

    def with_states(self, states: dict[str, dict[str, State]]) -> OptimizerState:
        """Return a copy with other states, by label and name."""
        return self._changed(lambda parameter: replace(parameter, states=states[parameter.label]))

    def _changed(self, change: Callable[[Parameter], Parameter]) -> OptimizerState:
        """Return a copy with other parameters."""
        return replace(
            self,
            groups=tuple(
                replace(group, parameters=tuple(map(change, group.parameters)))
                for group in self.groups
            ),
        )


def flaws(values: Tensor, *, signed: bool) -> Iterator[tuple[str, int, int]]:
    """Yield kind, number and first flat index of elements that no state can have."""
    for kind, bad in (("NaN or infinite", ~values.isfinite()), ("negative", values < 0)):
        if (count := int(bad.sum())) and not (signed and kind == "negative"):
            yield kind, count, int(bad.reshape(-1).int().argmax())
