"""Parameter groups by names and module types, and patterns of names."""

from __future__ import annotations

import glob
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase, translate
from typing import Any, TypeVar

from torch import nn

from qmaps.errors import BadTypeError, BadValueError, shown
from qmaps.optim.choice import StateQuantizers, listed, matches_nothing

Key = str | type[nn.Module]

EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


def param_groups(
    model: nn.Module,
    *,
    overrides: Mapping[str | type[nn.Module], StateQuantizers] | None = None,
    weight_decay: float | None = None,
) -> list[dict[str, Any]]:
    """The parameters of a model in groups, for any optimizer of `qmaps.optim`.

    Args:
        model: its parameters are taken under their names, frozen ones left out.
        overrides: quantizers, as `state_quantizers` takes them, for parameters that match a key,
            instead of the optimizer's; None means 32 bits. A key is a name; a pattern with
            ``*``, ``?`` and ``[...]``; or a module type, for all parameters in modules of that
            type. The first key that matches decides. A tied parameter has all its names.
        weight_decay: of parameters with two dimensions or more; the others (biases, norms) get
            0. The optimizer's own for all of them if left out.

    Returns:
        One dict for each different treatment, parameters in the model's order.

    Raises:
        BadValueError, BadTypeError: a key matches no parameter, or is of another kind.

    >>> import torch
    >>> from qmaps.optim import AdamW8bit
    >>> model = torch.nn.Sequential(torch.nn.Embedding(100, 64), torch.nn.Linear(64, 100))
    >>> groups = param_groups(model, overrides={torch.nn.Embedding: None, "1.*": "4bit"})
    >>> [(group["param_names"], group["override_key"]) for group in groups]
    [(['0.weight'], 'Embedding'), (['1.weight', '1.bias'], "'1.*'")]
    >>> optimizer = AdamW8bit(groups, lr=1e-3)
    """
    overrides = {} if overrides is None else overrides
    members = _trainable(model)
    matches = _matches(model, "overrides", overrides, members)
    groups: dict[tuple[Any, bool], dict[str, Any]] = {}
    for param, names in members.items():
        chosen = next((key for key in overrides if param in matches[key]), None)
        kind = (chosen, weight_decay is not None and param.dim() < 2)
        if kind not in groups:
            groups[kind] = {"params": [], "param_names": []}
            if chosen is not None:
                label = repr(chosen) if isinstance(chosen, str) else chosen.__name__
                groups[kind] |= {"state_quantizers": overrides[chosen], "override_key": label}
            if weight_decay is not None:
                groups[kind]["weight_decay"] = 0.0 if kind[1] else weight_decay
        groups[kind]["params"].append(param)
        groups[kind]["param_names"].append(names[0])
    return list(groups.values())


def muon_groups(
    model: nn.Module,
    *,
    exclude: Sequence[str | type[nn.Module]] = (),
    stacks: Sequence[str | type[nn.Module]] = (),
) -> tuple[list[tuple[str, nn.Parameter]], list[tuple[str, nn.Parameter]]]:
    """The matrices of a model's hidden layers, for `Muon`, and the others, for another optimizer.

    The others are embeddings, biases, and parameters without two dimensions of 2 elements or more.
    A bias is recognized by its name: ``experts.gate_up_proj_bias`` is one, though it has a row for
    each expert.

    Args:
        model: its parameters are returned with their names, without frozen ones.
        exclude: further parameters for the other optimizer, such as the head: names, patterns with
            ``*``, ``?`` and ``[...]``, or module types. A tied parameter has all its names.
        stacks: parameters with three dimensions that are stacks of matrices, such as the experts
            of a layer, in the form of `exclude`. Muon steps each matrix by itself.

    Returns:
        Names and parameters for `Muon`, and the others, in the model's order.

    Raises:
        BadValueError, BadTypeError: a member of `exclude` or `stacks` matches no parameter, or is
            of another kind.

    >>> import torch
    >>> from qmaps.optim import AdamW8bit, Muon8bit
    >>> model = torch.nn.Sequential(
    ...     torch.nn.Embedding(100, 64), torch.nn.Linear(64, 64), torch.nn.Linear(64, 100)
    ... )
    >>> matrices, others = muon_groups(model, exclude=["2.*"])
    >>> [name for name, _ in matrices], [name for name, _ in others]
    (['1.weight'], ['0.weight', '1.bias', '2.weight', '2.bias'])
    >>> optimizers = Muon8bit(matrices, lr=0.02), AdamW8bit(others, lr=3e-4)
    """
    for option, keys in (("exclude", exclude), ("stacks", stacks)):
        if isinstance(keys, (str, type)):
            raise BadTypeError(
                f"{option}={shown(keys)} must be a list of names, patterns or module types"
            )
    members = _trainable(model)
    matches = _matches(model, "exclude", exclude, members)
    stacked = set().union(*_matches(model, "stacks", stacks, members).values())
    embedded = [_members(model, "exclude", kind, members) for kind in EMBEDDINGS]
    apart = set().union(*matches.values(), *embedded)
    matrices: list[tuple[str, nn.Parameter]] = []
    others: list[tuple[str, nn.Parameter]] = []
    for param, names in members.items():
        is_matrix = param.dim() == 2 or (param.dim() == 3 and param in stacked)
        is_matrix &= min(param.shape[-2:], default=1) > 1 and not any(map(_is_bias, names))
        chosen = matrices if is_matrix and param not in apart else others
        chosen.append((names[0], param))
    return matrices, others


MODULE_WRAPPERS = frozenset({
    "module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"
})  # fmt: skip
"""Modules that torch and its trainers put around others, within names of parameters."""


def without_wrappers(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Names of a model's parameters in parts, without wrappers and without common first parts.

    Other prefixes are common first parts, such as ``base_model.model.`` of PEFT.

    >>> without_wrappers(["module.q.weight", "module.layers.0._orig_mod.k.weight"])
    [('q', 'weight'), ('layers', '0', 'k', 'weight')]
    >>> without_wrappers(["base_model.model.q.weight", "base_model.model.q.bias"])
    [('weight',), ('bias',)]
    """
    parts = [
        tuple(part for part in str(name).split(".") if part not in MODULE_WRAPPERS)
        for name in names
    ]
    common = 0
    for level in zip(*parts, strict=False):
        if len({*level}) > 1:
            break
        common += 1
    return [name[common:] for name in parts]


def _trainable(model: nn.Module) -> dict[nn.Parameter, list[str]]:
    """Parameters that are trained, with all their names."""
    members: dict[nn.Parameter, list[str]] = {}
    for name, param in model.named_parameters(remove_duplicate=False):
        if param.requires_grad:
            members.setdefault(param, []).append(name)
    return members


def _is_bias(name: str) -> bool:
    """Return True for a bias by its name, such as ``bias``, ``b_bias`` and ``bias_hh_l0``."""
    return not {"bias", "biases"}.isdisjoint(name.rpartition(".")[2].split("_"))


def _matches(
    model: nn.Module, option: str, keys: Iterable[Key], members: Mapping[nn.Parameter, list[str]]
) -> dict[Key, set[nn.Parameter]]:
    """The parameters that each key means; an error if one means none."""
    matches = {key: _members(model, option, key, members) for key in keys}
    for key, matched in matches.items():
        if matched:
            continue
        if isinstance(key, str):
            every = [name for names in members.values() for name in names]
            raise BadValueError(matches_nothing(key, every, option))
        types = sorted({type(module).__name__ for module in model.modules()})
        raise BadValueError(
            f"{option} names {key.__name__}, but no such module holds a trainable parameter; the "
            f"model's modules are {listed(types)}"
        )
    return matches


def _members(
    model: nn.Module, option: str, key: Key, members: Mapping[nn.Parameter, Iterable[str]]
) -> set[nn.Parameter]:
    """The parameters that a key of an option means."""
    if isinstance(key, str):
        return {p for p, names in members.items() if any(fnmatchcase(n, key) for n in names)}
    if not (isinstance(key, type) and issubclass(key, nn.Module)):
        raise BadTypeError(
            f"{option} has the key {shown(key)}; a key must be a parameter's name, a pattern of "
            "names, or a module type"
        )
    inside = (m.parameters() for m in model.modules() if isinstance(m, key))
    return {param for params in inside for param in params if param in members}


V = TypeVar("V", bound=Hashable)


def grouped(overrides: Mapping[str, V], names: Iterable[str]) -> dict[str, V]:
    """Write overrides of single parameters, among all `names`, as patterns of names.

    A pattern matches parameters with one and the same value and no other name, so the order of the
    patterns does not matter. It replaces one or more parts of a dotted name by ``*``, or the last
    digit of a numbered part by the digits that occur, as in ``layers.[03].weight``. A parameter
    that shares no such pattern with another one gets its own name, escaped. Patterns that match
    more parameters come first among those of a value; values have the order of `overrides`.

    >>> names = [f"layers.{n}.{part}" for n in range(4) for part in ("weight", "bias")]
    >>> grouped({name: 8 for name in names if name.endswith("weight")}, names)
    {'layers.*.weight': 8}
    >>> grouped({"layers.0.weight": 4, "layers.3.weight": 4}, names)
    {'layers.[03].weight': 4}
    """
    every = {*names, *overrides}
    by_value: dict[V, set[str]] = {}
    for name, value in overrides.items():
        by_value.setdefault(value, set()).add(name)
    return {
        pattern: value
        for value, named in by_value.items()
        for pattern in _cover(named, every - named)
    }


def _cover(names: set[str], others: set[str]) -> Iterator[str]:
    """Patterns that together match each of `names`, and none of `others`; the largest first."""
    matches: dict[tuple[bool, str], set[str]] = {}
    for name in sorted(names):
        for star in _stars(name):
            matches.setdefault((True, star), set()).add(name)
        for digits in _digits(name, names):
            matches.setdefault((False, digits), set()).add(name)
    candidates = {pattern: members for pattern, members in matches.items() if len(members) > 1}
    uncovered = set(names)
    while candidates:
        # Of those that match as many: "*" before digits, then the longest, which says most.
        best = max(candidates, key=lambda key: (len(candidates[key]), key[0], len(key[1]), key[1]))
        members = candidates.pop(best)
        if any(map(re.compile(translate(best[1])).match, others)):
            continue
        yield best[1]
        uncovered -= members
        candidates = {
            key: rest for key, matched in candidates.items() if len(rest := matched - members) > 1
        }
    for name in sorted(uncovered):
        yield glob.escape(name)


def _stars(name: str) -> Iterator[str]:
    """The name with each run of its parts replaced by ``*``."""
    parts = [glob.escape(part) for part in name.split(".")]
    for start in range(len(parts)):
        for end in range(start + 1, len(parts) + 1):
            yield ".".join([*parts[:start], "*", *parts[end:]])


def _digits(name: str, names: set[str]) -> Iterator[str]:
    """The name with the last digit of each number in it replaced by those that occur in `names`."""
    for number in re.finditer(r"(?<![^.])[0-9]*([0-9])(?![^.])", name):
        before, after = name[: number.start(1)], name[number.end(1) :]
        digits = [digit for digit in "0123456789" if before + digit + after in names]
        is_range = len(digits) > 2 and int(digits[-1]) - int(digits[0]) == len(digits) - 1
        shown = f"{digits[0]}-{digits[-1]}" if is_range else "".join(digits)
        yield f"{glob.escape(before)}[{shown}]{glob.escape(after)}"
