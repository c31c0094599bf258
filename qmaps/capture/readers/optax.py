"""States of optax in trees, which Orbax and Flax save: nodes with moments at any depth.

A node is a state of one transformation, such as ``ScaleByAdamState(count, mu, nu)``. Those of
`chain`, `masked`, `inject_hyperparams`, `MultiSteps` and `partition` are around it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qmaps.capture.readers.base import StateDict, decimal, refuse_missing_state
from qmaps.capture.snapshot import Lazy
from qmaps.errors import CaptureError

Keys = tuple[str, ...]
"""Keys that lead to a leaf."""

COUNT = "count"
"""Number of updates, also of those of one member of ``MultiSteps``."""

NODES: tuple[Mapping[str, str], ...] = (
    {COUNT: "step", "mu": "exp_avg", "nu": "exp_avg_sq", "nu_max": "max_exp_avg_sq"},
    {COUNT: "step", "mu": "exp_avg", "nu": "exp_avg_sq"},
    {COUNT: "step", "m1": "exp_avg", "m2": "exp_avg_slow", "nu": "exp_avg_sq"},
    {COUNT: "step", "mu": "exp_avg"},  # Lion
    {COUNT: "step", "nu": "square_avg"},
    {"mu": "grad_avg", "nu": "square_avg"},  # RMSProp, centered
    {"nu": "square_avg"},
    {"sum_of_squares": "sum"},
    {"trace": "momentum_buffer"},
)
"""Fields of a node, and torch's names; the first whose fields are all there is taken."""

OPTIONS = {"learning_rate": "lr", "eps": "eps", "weight_decay": "weight_decay"}
"""Options of `inject_hyperparams`, and torch's names."""

OF_MODEL = frozenset({"params", "acc_grads", "grad_acc", "ema", "ema_params"})
"""Keys of trees like the model's, in which layers may be named as fields of nodes."""

BOX = "value"
"""The only key in what NNX, and Flax's partitioning, put around a leaf."""

Children = Mapping[Keys, set[str]]
"""Keys within each place of a tree."""


def state_dicts_of(leaves: Mapping[Keys, Any], path: Path) -> list[StateDict]:
    """Return the optimizers in a tree, with a group for each node.

    Nodes with the same states of the same parameters are of different optimizers.
    """
    boxed = _children(leaves)
    leaves = {
        keys[:-1] if keys[-1:] == (BOX,) and boxed[keys[:-1]] == {BOX} else keys: leaf
        for keys, leaf in leaves.items()
    }
    found: list[StateDict] = []
    for place, fields in _nodes(_children(leaves), leaves):
        states = _states(place, fields, leaves)
        fits = (each for each in found if not _overlap(each["state"], states))
        if (state_dict := next(fits, None)) is None:
            found.append(state_dict := {"state": {}, "param_groups": []})
        names = [name for name in states if name not in state_dict["state"]]
        for name, members in states.items():
            state_dict["state"].setdefault(name, {}).update(members)
        state_dict["param_groups"].append({**_options(place, leaves), "params": names})
    if not found:
        keys = sorted({".".join(keys) for keys in leaves})
        listed = ", ".join(keys[:4]) + (", ..." if len(keys) > 4 else "")
        raise CaptureError(
            f"{str(path)!r} must hold a state of optax, such as 'count', 'mu' and 'nu' side by "
            f"side, but holds {listed or 'nothing'}"
        )
    return [refuse_missing_state(path, _of_updates(state_dict)) for state_dict in found]


def _children(leaves: Mapping[Keys, Any]) -> dict[Keys, set[str]]:
    children: dict[Keys, set[str]] = {}
    for keys in leaves:
        for depth, key in enumerate(keys):
            children.setdefault(keys[:depth], set()).add(key)
    return children


def _nodes(
    children: Children, leaves: Mapping[Keys, Any]
) -> Iterator[tuple[Keys, Mapping[str, str]]]:
    """Yield place and fields of each node that is in no other."""
    nodes: set[Keys] = set()
    for place, names in sorted(children.items()):  # outer places come first
        within = {place[:depth] for depth in range(len(place))}
        if not OF_MODEL.isdisjoint(place) or within & nodes:
            continue
        is_counted = (*place, COUNT) in leaves
        for fields in NODES:
            is_node = is_counted if COUNT in fields else fields.keys() == names
            if is_node and fields.keys() <= names:
                nodes.add(place)
                yield place, fields
                break


def _states(
    place: Keys, fields: Mapping[str, str], leaves: Mapping[Keys, Any]
) -> dict[str, dict[str, Any]]:
    """The states of each parameter in a node, by torch's names."""
    states: dict[str, dict[str, Any]] = {}
    depth = len(place)
    for keys, leaf in leaves.items():
        field = keys[depth] if keys[:depth] == place and len(keys) > depth else COUNT
        if field in fields and field != COUNT:
            states.setdefault(".".join(keys[depth + 1 :]), {})[fields[field]] = leaf
    if COUNT in fields:
        for members in states.values():
            members["step"] = leaves[(*place, COUNT)]
    return states


def _overlap(states: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    return any(not states[name].keys().isdisjoint(others[name]) for name in states.keys() & others)


def _of_updates(state_dict: StateDict) -> StateDict:
    """Name traces of updates apart: beside other states, they are no averages of gradients."""
    for members in state_dict["state"].values():
        if len(members) > 1 and "momentum_buffer" in members:
            members["trace"] = members.pop("momentum_buffer")
    return state_dict


def _options(place: Keys, leaves: Mapping[Keys, Any]) -> dict[str, Any]:
    """The options that `inject_hyperparams` keeps around a node, by torch's names."""
    for depth in range(len(place), -1, -1):
        around = (*place[:depth], "hyperparams")
        held = {k[-1]: x for k, x in leaves.items() if k[:-1] == around}
        if held:
            numbers = {name: decimal(float(_number(value))) for name, value in held.items()}
            options: dict[str, Any] = {
                new: numbers[name] for name, new in OPTIONS.items() if name in numbers
            }
            if {"b1", "b2"} <= numbers.keys():
                options["betas"] = (numbers["b1"], numbers["b2"])
            return options
    return {}


def _number(value: Any) -> Any:
    """A number, also one in a tensor of one element."""
    if isinstance(value, Lazy):
        if math.prod(value.shape) != 1:
            raise CaptureError(f"an option of optax has shape {value.shape}; it must be a number")
        value = value.read().item()
    return value
