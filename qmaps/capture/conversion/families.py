"""Sets of states that belong together, under the names of torch and qmaps."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from qmaps.errors import BadValueError, CaptureError, nearest


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
    for known in FAMILIES.values():
        if set(known.states) - known.optional <= found <= set(known.states):
            return known
    have = ", ".join(sorted(found)) if found else "no states"
    known_states = "; ".join(f"{f.name}: {', '.join(f.states)}" for f in FAMILIES.values())
    raise CaptureError(
        f"the checkpoint has {have}; only these states can be converted: {known_states}"
    )
