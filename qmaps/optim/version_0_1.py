"""Update rules that are declared as in version 0.1: they work until version 0.3, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from qmaps.optim.rule import State

if TYPE_CHECKING:
    from qmaps.optim.base import QuantizedOptimizer

NOW = {
    "state_names": "states={name: State(...)}",
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
    """
    old = [name for name in NOW if name in cls.__dict__]
    if not old:
        return
    warnings.warn(
        f"{cls.__name__} defines {', '.join(old)}; from version 0.3 on define "
        f"{', '.join(NOW[name] for name in old)} (qmaps.optim.rule)",
        DeprecationWarning,
        stacklevel=3,
    )
    own: dict[str, Any] = dict(cls.__dict__)
    if "state_names" in own and "states" not in own:
        cls.states = {name: _state(cls, name) for name in cls.state_names}
    if "states_of" in own and "state_shapes" not in own:
        cls.state_shapes = _shapes(own["states_of"])  # type: ignore[method-assign]
    if "constants" in own and "step_scalars" not in own:
        cls.step_scalars = own["constants"]  # type: ignore[method-assign]


def _state(cls: Any, name: str) -> State:
    dims = getattr(cls, "state_dims", None)
    initial = getattr(cls, "initial", None)
    made = State(
        signed=name in cls.signed_states,
        exact=name in cls.exact_states,
        factored=name in getattr(cls, "side_states", ()),
        initial=0.0 if initial is None else partial(_initial, initial, name),
    )
    # The old methods were pure functions of their arguments.
    return made if dims is None else State(**{**vars(made), "dims": partial(dims, None, name)})


def _initial(initial: Callable[..., dict[str, float]], name: str, group: dict[str, Any]) -> float:
    return initial(None, group).get(name, 0.0)


def _shapes(states_of: Callable[..., tuple[str, ...]]) -> Callable[..., dict[str, tuple[int, ...]]]:
    def state_shapes(
        self: QuantizedOptimizer, param: Tensor, group: dict[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(states_of(self, group), tuple(param.shape))

    return state_shapes
