"""Update rules that are declared as in version 0.1: they work until version 0.3, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

from torch import Tensor

from qmaps.errors import BadTypeError
from qmaps.optim.rule import State

if TYPE_CHECKING:
    from qmaps.optim.base import QuantizedOptimizer

NOW = {
    "state_names": "states={name: State(...)}",
    "signed_states": "State(signed=True)",
    "exact_states": "State(exact=True)",
    "side_states": "State(factored=True)",
    "state_dims": "State(dims=...)",
    "initial": "State(initial=...)",
    "states_of": "state_shapes",
    "constants": "step_scalars",
}
"""Members of version 0.1, and what a class defines instead of them."""


def adapt(cls: type[QuantizedOptimizer]) -> None:
    """Give a class that defines members of version 0.1 those of today, and warn.

    Args:
        cls: a new subclass, changed in place.

    Raises:
        BadTypeError: it overrides `advance` with the arguments of version 0.1.
    """
    if "advance" in cls.__dict__ and "number" in signature(cls.advance).parameters:
        raise BadTypeError(
            f"{cls.__name__}.advance takes a number, a group and a step as in version 0.1; it must "
            "be advance(self, context, param, grad, states, scalars) (qmaps.optim.rule)"
        )
    old = [name for name in NOW if name in cls.__dict__]
    if "step_scalars" in cls.__dict__ and "constants" not in old:
        cls.constants = _constants(cls.__dict__["step_scalars"])  # type: ignore[attr-defined]
    if not old:
        return
    warnings.warn(
        f"{cls.__name__} defines {', '.join(old)}; from version 0.3 on define "
        f"{', '.join(NOW[name] for name in old)} (qmaps.optim.rule)",
        DeprecationWarning,
        stacklevel=3,
    )
    own: dict[str, Any] = dict(cls.__dict__)
    if "states" not in own:
        known = getattr(cls, "states", {})
        names = own.get("state_names", tuple(known))
        cls.states = {name: _state(own, name, known.get(name, State())) for name in names}
    if "states_of" in own and "state_shapes" not in own:
        cls.state_shapes = _shapes(own["states_of"])  # type: ignore[method-assign]
    if "constants" in own and "step_scalars" not in own:
        cls.step_scalars = own["constants"]  # type: ignore[method-assign]


def _state(own: dict[str, Any], name: str, known: State) -> State:
    """A state as a class declares it in its `own` members, for the rest as it was `known`."""
    made = replace(
        known,
        signed=name in own["signed_states"] if "signed_states" in own else known.signed,
        exact=name in own["exact_states"] if "exact_states" in own else known.exact,
        factored=name in own["side_states"] if "side_states" in own else known.factored,
    )
    # The old methods were pure functions of their arguments.
    if "initial" in own:
        made = replace(made, initial=partial(_initial, own["initial"], name))
    return (
        replace(made, dims=partial(own["state_dims"], None, name)) if "state_dims" in own else made
    )


def _initial(initial: Callable[..., dict[str, float]], name: str, group: dict[str, Any]) -> float:
    return initial(None, group).get(name, 0.0)


def _shapes(states_of: Callable[..., tuple[str, ...]]) -> Callable[..., dict[str, tuple[int, ...]]]:
    def state_shapes(
        self: QuantizedOptimizer, param: Tensor, group: dict[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(states_of(self, group), tuple(param.shape))

    return state_shapes


def _constants(step_scalars: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """A class's own `step_scalars` under its old name, so that ``super().constants`` finds it."""

    def constants(self: QuantizedOptimizer, group: dict[str, Any]) -> dict[str, Any]:
        warnings.warn(
            "constants is now step_scalars; the old name goes in version 0.3",
            DeprecationWarning,
            stacklevel=2,
        )
        return step_scalars(self, group)

    return constants
