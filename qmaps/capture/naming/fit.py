"""Matching of an optimizer's numbered parameters to a model's names.

An optimizer has its parameters in the model's order, or in two groups: those with weight decay and
those without, each in the model's order. A group is identified by its place and its weight decay,
and the group of a parameter by the rules in `RULES`. Parameters that the optimizer does not have,
such as frozen ones, are left out. Names are accepted only if the shape of every state agrees, and
no other names would agree too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from qmaps.capture.naming.known import Known, Shape

SHAPED_AS_PARAMETER = (
    "exp_avg",
    "exp_avg_sq",
    "momentum_buffer",
    "square_avg",
    "sum",
    "state1",
    "state2",
)
"""States with the shape of their parameter, in any optimizer."""


class Unnamed(Exception):  # noqa: N818
    """Names cannot be recovered; the message says why."""


class _Shaped(Protocol):
    @property
    def shape(self) -> Shape: ...


@dataclass(frozen=True)
class Group:
    """A parameter group of an optimizer.

    Attributes:
        shapes: shape of each parameter; None where its states do not tell.
        weight_decay: weight decay of the group; None where the optimizer has none.
    """

    shapes: Sequence[Shape | None]
    weight_decay: Any = None


def parameter_shape(states: Mapping[str, _Shaped]) -> Shape | None:
    """Return the shape of a parameter from its states, or None.

    Args:
        states: the states by name.
    """
    for name in SHAPED_AS_PARAMETER:
        if name in states:
            return tuple(states[name].shape)
    rows, columns = states.get("exp_avg_sq_row"), states.get("exp_avg_sq_col")
    if rows is None or columns is None:
        return None
    return (*rows.shape, *columns.shape[-1:])


def fitted(model: Known, groups: Sequence[Group]) -> list[str]:
    """Return the name of each parameter in the optimizer's order.

    Args:
        model: parameters of the model.
        groups: groups of the optimizer.

    Raises:
        Unnamed: no names agree with all shapes, or several do.
    """
    shapes = [shape for group in groups for shape in group.shapes]
    if all(shape is None for shape in shapes):
        raise Unnamed("no state has the shape of its parameter")
    if len(model.shapes) < len(shapes):
        raise Unnamed(
            f"{model.source} has {len(model.shapes)} parameters and the optimizer {len(shapes)}"
        )
    orders: set[tuple[str, ...]] = set(_ways([_Part(list(model.shapes), shapes)], model))
    if len(groups) == 2:
        first, second = groups[::-1] if _exempt_first(groups) else groups
        for rule in RULES:
            exempt = [name for name in model.shapes if rule(name, model)]
            decaying = [name for name in model.shapes if not rule(name, model)]
            parts = [_Part(decaying, first.shapes), _Part(exempt, second.shapes)]
            orders |= set(_ways(parts if first is groups[0] else parts[::-1], model))
    if not orders:
        raise Unnamed(f"the states do not have the shapes of the parameters in {model.source}")
    if len(orders) > 1:
        raise Unnamed(f"the states fit the parameters in {model.source} in several orders")
    return list(orders.pop())


@dataclass(frozen=True)
class _Part:
    """Names in the model's order, and the shapes of the parameters that are some of them."""

    names: Sequence[str]
    wanted: Sequence[Shape | None]


def _ways(parts: Sequence[_Part], model: Known) -> list[tuple[str, ...]]:
    """The first and the last choice of names for all parts; they differ if there are several."""
    ways = []
    for step in (1, -1):
        chosen: list[str] = []
        for part in parts:
            fit = _first_fit(part.names[::step], part.wanted[::step], model)
            if fit is None:
                return []
            chosen += fit[::step]
        ways.append(tuple(chosen))
    return ways


def _first_fit(
    names: Sequence[str], wanted: Sequence[Shape | None], model: Known
) -> list[str] | None:
    """For each shape in turn the next name of that shape; None if the names do not suffice."""
    candidates = iter(names)
    fit = []
    for shape in wanted:
        name = next((n for n in candidates if shape in (None, model.shapes[n])), None)
        if name is None:
            return None
        fit.append(name)
    return fit


def _exempt_first(groups: Sequence[Group]) -> bool:
    """Return True if the first of two groups is the one without weight decay."""
    return not groups[0].weight_decay and bool(groups[1].weight_decay)


def _by_trainer(name: str, model: Known) -> bool:
    """Biases, and weights of norms by the module's type or name: transformers 5."""
    parts = name.lower().split(".")
    return (
        name in model.norms
        or any(word in name.lower() for word in ("bias", "layernorm", "rmsnorm"))
        or any(part == "norm" or part.endswith("_norm") for part in parts)
    )


def _by_earlier_trainer(name: str, model: Known) -> bool:
    """Biases, and weights of ``nn.LayerNorm``: transformers 4."""
    return name in model.norms or "bias" in name


def _by_dimensions(name: str, model: Known) -> bool:
    """Parameters of fewer than two dimensions, as many training scripts do."""
    return len(model.shapes[name]) < 2


RULES: tuple[Callable[[str, Known], bool], ...] = (
    _by_trainer,
    _by_earlier_trainer,
    _by_dimensions,
)
"""Rules that return True for parameters exempt from weight decay."""
