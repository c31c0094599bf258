"""State_dicts of optimizers in one flat dict, as torchtitan and torch's option flatten them.

Keys are ``state.PARAMETER.exp_avg`` and ``param_groups.PARAMETER.lr``; a quantized state of qmaps
takes several, such as ``state.PARAMETER.exp_avg.codes``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

STATE, GROUPS = "state.", "param_groups."
"""The beginnings of all keys."""

Leaf = tuple[tuple[str | int, ...], Any]
"""A value, and its path in the nested dict that it was taken from."""


def is_flattened(value: Any) -> bool:
    """Return True for a flat state_dict."""
    return (
        isinstance(value, Mapping)
        and all(str(key).startswith((STATE, GROUPS)) for key in value)
        and any(str(key).startswith(GROUPS) for key in value)
    )


def unflattened(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The state_dict of a flat one, with parameters under their names."""
    options = options_of(
        ((key.removeprefix(GROUPS),), value)
        for key, value in flat.items()
        if key.startswith(GROUPS)
    )
    groups = grouped(options)
    names = {name for group in groups for name in group["params"]}
    state: dict[str, dict[str, Any]] = {}
    for key, value in flat.items():
        if key.startswith(STATE):
            parameter, name = split(key.removeprefix(STATE), names)
            state.setdefault(parameter, {})[name] = value
    return {
        "state": {name: joined(members) for name, members in state.items()},
        "param_groups": groups,
    }


def options_of(leaves: Iterable[Leaf]) -> dict[str, dict[str, Any]]:
    """The options of each parameter; paths begin with ``PARAMETER.OPTION``."""
    options: dict[str, dict[str, Any]] = {}
    for (key, *within), value in leaves:
        parameter, _, option = str(key).rpartition(".")
        put(options.setdefault(parameter, {}), (option, *within), value)
    return options


def grouped(options: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Groups of the parameters with equal options."""
    groups: list[dict[str, Any]] = []
    for parameter, all_options in options.items():
        # `param_names` has those of the whole group, in an order of its own.
        own = {name: value for name, value in all_options.items() if name != "param_names"}
        alike = next((g for g in groups if {**g, "params": 0} == {**own, "params": 0}), None)
        if alike is None:
            groups.append(alike := {**own, "params": []})
        alike["params"].append(parameter)
    return groups


def split(key: str, names: AbstractSet[Any]) -> tuple[str, str]:
    """The parameter and the state of a key; a name of a state may have dots in it."""
    name = key.rpartition(".")[0]
    prefix = name
    while prefix and prefix not in names:
        prefix = prefix.rpartition(".")[0]
    name = prefix or name
    return name, key[len(name) + 1 :]


def joined(state: Mapping[Any, Any]) -> dict[Any, Any]:
    """A parameter's states, the parts of each quantized one of qmaps in a dict of their own."""
    specs = [str(key) for key in state if str(key).endswith(".spec")]
    quantized = tuple(key.removesuffix("spec") for key in specs)
    nested: dict[Any, Any] = {}
    for key, value in state.items():
        if quantized and str(key).startswith(quantized):
            put(nested, tuple(str(key).split(".")), value)
        else:
            nested[key] = value
    return nested


def put(into: dict[Any, Any], path: tuple[str | int, ...], leaf: Any) -> None:
    """Store a value in nested dicts, which are made on the way."""
    *steps, last = path
    for step in steps:
        into = into.setdefault(step, {})
        if not isinstance(into, Mapping):
            raise TypeError(f"{step!r} is both a value and a dict of values")
    into[last] = leaf
