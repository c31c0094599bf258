"""The common form of all conversions: an optimizer's states in no library's layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from qmaps.algebra.feedback import restored
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.capture.conversion.families import Family
from qmaps.errors import CaptureError

State = Tensor | QuantizedTensor
"""float32 values, or codes and scales as the source has them."""


def values_of(state: State) -> Tensor:
    """The float32 values that a state stands for."""
    return state.dequantize() if isinstance(state, QuantizedTensor) else state


def restored_of(state: State) -> Tensor:
    """As `values_of`, with the residual of error feedback added, so that it is not lost."""
    return restored(state) if isinstance(state, QuantizedTensor) else state


@dataclass(frozen=True)
class Parameter:
    """One parameter's states.

    Attributes:
        label: the name that reports use.
        name: the parameter's own name; None where the checkpoint does not have it.
        step: number of steps taken; None where the optimizer does not count steps.
        states: the states by name; empty before the first step.
        reset: the step in which the states last began anew (`reset_every`); 0 if they never did.
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
    """A parameter group.

    Attributes:
        options: the group's options under torch's names, without `params` and `param_names`.
        keys: the keys by which the state_dict names the parameters, in their order.
        parameters: the parameters, in the order of the keys.
    """

    options: dict[str, Any]
    keys: tuple[Any, ...]
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class OptimizerState:
    """A state_dict taken apart.

    Attributes:
        family: the family of optimizers, which says which states there are.
        groups: the parameter groups.
        rest: entries of the state_dict besides `state` and `param_groups`.
        notes: sentences on what a reader should know and no number shows.
    """

    family: Family
    groups: tuple[Group, ...]
    rest: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def parameters(self) -> Iterator[Parameter]:
        """Every parameter, in order."""
        for group in self.groups:
            yield from group.parameters

    def quantized(self) -> list[tuple[Parameter, str, QuantizedTensor]]:
        """Every quantized state with its parameter and name."""
        return [
            (parameter, name, state)
            for parameter in self.parameters()
            for name, state in parameter.states.items()
            if isinstance(state, QuantizedTensor)
        ]

    def without_resets(self) -> OptimizerState:
        """Return a copy that counts steps from the last reset on, and a note where there was one.

        Bias corrections are those of the steps since then. What is lost is the total number of
        steps, and that the states were to begin anew again.
        """
        reset = [parameter for parameter in self.parameters() if parameter.reset]
        if not reset:
            return self
        groups = tuple(
            replace(group, parameters=tuple(map(_since_reset, group.parameters)))
            for group in self.groups
        )
        note = (
            f"the states of {len(reset)} parameters were reset (reset_every); their step is the "
            "number of steps since then"
        )
        return replace(self, groups=groups, notes=(*self.notes, note))

    def with_states(self, states: dict[str, dict[str, State]]) -> OptimizerState:
        """Return a copy with other states.

        Args:
            states: new states by name, for the label of every parameter.
        """
        groups = [
            replace(
                group,
                parameters=tuple(
                    replace(parameter, states=states[parameter.label])
                    for parameter in group.parameters
                ),
            )
            for group in self.groups
        ]
        return replace(self, groups=tuple(groups))


def _since_reset(parameter: Parameter) -> Parameter:
    step = None if parameter.step is None else parameter.step - parameter.reset
    return replace(parameter, step=step, reset=0.0)


def checked(state: State, label: str, name: str, *, signed: bool) -> State:
    """Check that a state has values that an optimizer's state can have.

    Args:
        state: the state, in float32 or quantized; a quantized one is decoded for the check.
        label: label of the parameter, for the error message.
        name: name of the state, for the error message.
        signed: if False, negative values are not allowed.

    Returns:
        `state` itself.

    Raises:
        CaptureError: it holds NaN, infinity, or negative values where it cannot be negative.
    """
    values = values_of(state)
    for bad, kind, allowed in (
        (~values.isfinite(), "NaN or infinite", "only finite states can be converted"),
        (values < 0, "negative", f"{name} cannot be negative"),
    ):
        if kind == "negative" and signed:
            continue
        if count := int(bad.sum()):
            first = int(bad.reshape(-1).int().argmax())
            raise CaptureError(
                f"state {name!r} of {label!r} holds {count} {kind} elements, the first at flat "
                f"index {first}; {allowed}"
            )
    return state
