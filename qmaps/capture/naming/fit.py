"""Which parameter of a model each number of an optimizer is.

An optimizer has its parameters in the model's order, or in two groups: those with weight decay and
those without, each in the model's order. A group is told by its place and its weight decay, and
which parameter belongs to which group by the rules in `RULES`. Parameters that the optimizer does
not have, such as frozen ones, are left out. Names are accepted only if the shape of every state
agrees, and no other names would agree too.
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
"""States that have their parameter's shape, under any optimizer that keeps them."""


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
    """Return the shape of a parameter as its states tell it, or None.

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


def fitted(known: Known, groups: Sequence[Group]) -> list[str]:
    """Return the name of each parameter in the optimizer's order.

    Args:
        known: parameters of the model.
        groups: groups of the optimizer.

    Raises:
        Unnamed: no names agree with all shapes, or several do.
    """
    wanted = [shape for group in groups for shape in group.shapes]
    if all(shape is None for shape in wanted):
        raise Unnamed("no state has the shape of its parameter")
    if len(known.shapes) < len(wanted):
        raise Unnamed(
            f"{known.source} has {len(known.shapes)} parameters and the optimizer {len(wanted)}"
        )
    found: set[tuple[str, ...]] = set(_ways([_Part(list(known.shapes), wanted)], known))
    if len(groups) == 2:
        first, second = groups[::-1] if _exempt_first(groups) else groups
        for rule in RULES:
            exempt = [name for name in known.shapes if rule(name, known)]
            decaying = [name for name in known.shapes if not rule(name, known)]
            parts = [_Part(decaying, first.shapes), _Part(exempt, second.shapes)]
            found |= set(_ways(parts if first is groups[0] else parts[::-1], known))
    if not found:
        raise Unnamed(f"the states do not have the shapes of the parameters in {known.source}")
    if len(found) > 1:
        raise Unnamed(f"the states fit the parameters in {known.source} in several orders")
    return list(found.pop())


@dataclass(frozen=True)
class _Part:
    """Names in the model's order, and the shapes of the parameters that are some of them."""

    names: Sequence[str]
    wanted: Sequence[Shape | None]


def _ways(parts: Sequence[_Part], known: Known) -> list[tuple[str, ...]]:
    """The first and the last choice of names for all parts; they differ if there are several."""
    ways = []
    for step in (1, -1):
        chosen: list[str] = []
        for part in parts:
            found = _first_fit(part.names[::step], part.wanted[::step], known)
            if found is None:
                return []
            chosen += found[::step]
        ways.append(tuple(chosen))
    return ways


def _first_fit(
    names: Sequence[str], wanted: Sequence[Shape | None], known: Known
) -> list[str] | None:
    """For each shape in turn the next name of that shape; None if the names do not suffice."""
    rest = iter(names)
    found = []
    for shape in wanted:
        name = next((n for n in rest if shape in (None, known.shapes[n])), None)
        if name is None:
            return None
        found.append(name)
    return found


def _exempt_first(groups: Sequence[Group]) -> bool:
    """Whether the first of two groups is the one without weight decay."""
    return not groups[0].weight_decay and bool(groups[1].weight_decay)


def _by_trainer(name: str, known: Known) -> bool:
    """Biases, and weights of norms by the module's type or name: transformers 5."""
    parts = name.lower().split(".")
    return (
        name in known.norms
        or any(word in name.lower() for word in ("bias", "layernorm", "rmsnorm"))
        or any(part == "norm" or part.endswith("_norm") for part in parts)
    )


def _by_earlier_trainer(name: str, known: Known) -> bool:
    """Biases, and weights of ``nn.LayerNorm``: transformers 4."""
    return name in known.norms or "bias" in name


def _by_dimensions(name: str, known: Known) -> bool:
    """Parameters of fewer than two dimensions, as many training scripts do."""
    return len(known.shapes[name]) < 2


RULES: tuple[Callable[[str, Known], bool], ...] = (
    _by_trainer,
    _by_earlier_trainer,
    _by_dimensions,
)
"""Whether a parameter is exempt from weight decay."""
