"""Sets of states that belong together, under the names of torch and qmaps."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from qmaps import optim
from qmaps.errors import BadValueError, CaptureError, nearest
from qmaps.optim import QuantizedOptimizer
from qmaps.optim.rule import every


@dataclass(frozen=True)
class Family:
    """Optimizers that keep the same states.

    Attributes:
        name: name of one of the optimizers, in lower case.
        states: names of the states, the first moment first.
        signed: names of the states that can be negative.
        optional: names of the states that exist under some options only.
        moments: names of the first and the second moment, where the rule divides the first by the
            root of the second.
    """

    name: str
    states: tuple[str, ...]
    signed: frozenset[str]
    optional: frozenset[str] = frozenset()
    moments: tuple[str, str] | None = None


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
        Family("lion", ("exp_avg",), frozenset({"exp_avg"})),
        Family("sgd", ("momentum_buffer",), frozenset({"momentum_buffer"})),
        Family(
            "rmsprop",
            ("square_avg", "momentum_buffer", "grad_avg"),
            frozenset({"momentum_buffer", "grad_avg"}),
            frozenset({"momentum_buffer", "grad_avg"}),
        ),
        Family("adagrad", ("sum",), frozenset()),
    )
}
"""Those that other libraries have; `_of_rules` adds what `qmaps.optim` has besides."""


def _of_rules() -> None:
    """Add a family for each rule with states of the parameter's shape that no family has."""
    for name in optim.__all__:
        cls = getattr(optim, name)
        if not (isinstance(cls, type) and issubclass(cls, QuantizedOptimizer) and cls.state_names):
            continue
        whole = all(state.dims is every for state in cls.states.values())
        if whole and _with(set(cls.state_names)) is None:
            fixed = cls.state_shapes is QuantizedOptimizer.state_shapes
            optional = frozenset() if fixed else frozenset(cls.state_names)
            family = Family(name.lower(), cls.state_names, cls.signed_states, optional)
            FAMILIES[family.name] = family


def _with(names: set[str]) -> Family | None:
    """The first family whose states have these names."""
    for known in FAMILIES.values():
        if set(known.states) - known.optional <= names <= set(known.states):
            return known
    return None


_of_rules()


def family(name: str) -> Family:
    """Return the family of that name, as the option `optimizer` gives it.

    Raises:
        BadValueError: there is no such family.
    """
    if name not in FAMILIES:
        raise BadValueError(
            f"optimizer={name!r} is unknown; allowed are "
            f"{', '.join(FAMILIES)}{nearest(name, FAMILIES)}"
        )
    return FAMILIES[name]


def family_of(names: Collection[str]) -> Family:
    """Return the first family whose states have these names.

    Raises:
        CaptureError: there is no such family.
    """
    found = set(names)
    if (known := _with(found)) is not None:
        return known
    have = ", ".join(sorted(found)) if found else "no states"
    raise CaptureError(
        f"the checkpoint has {have}; only states of these optimizers can be converted: "
        f"{', '.join(FAMILIES)}"
    )
