"""Choice of a quantizer for each state, with its reason."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torch import Tensor

from qmaps.algebra.quantizer import Quantizer, quantizer
from qmaps.algebra.saved import from_plain
from qmaps.errors import BadTypeError, BadValueError, nearest, shown
from qmaps.optim.presets import preset

StateQuantizers = str | Mapping[str, str | Quantizer | None] | None
Specs = dict[str, str | None]

MARK = "qmaps_states_in_32_bits"
"""The attribute of a parameter whose states stay in 32 bits: a str that says why."""

MIN_SIZE = 4096
"""Elements up to which states stay in 32 bits, if nothing else is asked for."""

_marks = 0


class Decision(NamedTuple):
    """The quantizer of a state, None for 32 bits, and the reason in a few words."""

    quantizer: Quantizer | None
    why: str


def keep_in_32_bits(param: Tensor, why: str) -> None:
    """Keep a parameter's states in 32 bits, whatever optimizer gets it.

    The mark belongs to this tensor object: tied weights share it, ``copy.deepcopy`` leaves it
    behind. A module that marks its parameters does so again when it is copied, moved or loaded,
    as `qmaps.nn.StableEmbedding` does.

    Args:
        param: the parameter.
        why: shown by ``optimizer.memory()``.
    """
    global _marks
    if getattr(param, MARK, None) != why:
        setattr(param, MARK, why)
        _marks += 1


class Choices:
    """An optimizer's choices of quantizers, from the options of its parameter groups.

    `signed` are states with negative values, `exact` those in 32 bits under any preset.
    """

    def __init__(
        self, owner: str, states: Sequence[str], signed: Collection[str], exact: Collection[str]
    ) -> None:
        self._owner, self._states, self._signed = owner, tuple(states), frozenset(signed)
        self._by_preset = [name for name in states if name not in exact]
        self._known: dict[str, Quantizer] = {}
        self._names: dict[Tensor, str] = {}

    def of(
        self,
        state: str,
        param: Tensor,
        group: Mapping[str, Any],
        shape: tuple[int, ...] | None = None,
    ) -> Decision:
        """The choice for one state, of the parameter's shape or of one of its own.

        The first of these rules that applies:

        1. The group's `quantize` is False: 32 bits.
        2. The parameter is marked by `keep_in_32_bits`: 32 bits.
        3. The quantizers are those of the first of the group's `overrides` whose pattern matches
           the parameter's name, otherwise the group's `state_quantizers`. None for this state: 32
           bits.
        4. The state has at most `min_quantized_size` elements, all shards together: 32 bits.
        """
        if not group["quantize"]:
            return Decision(None, "quantize=False in the group")
        if (mark := getattr(param, MARK, None)) is not None:
            return Decision(None, mark)
        override, specs = group.get("override_key"), group["state_quantizers"]
        for pattern, override_specs in group["overrides"].items():
            if fnmatchcase(self._name(param, group), pattern):
                override, specs = repr(pattern), override_specs
                break
        source = f"override {override}" if override else ""
        spec = specs.get(state)
        if spec is None:
            return Decision(None, source or f"no quantizer for {state}")
        # A DTensor counts all of its shards.
        numel = param.numel() if shape is None else math.prod(shape)
        if numel <= (minimum := group["min_quantized_size"]):
            return Decision(None, f"{numel} <= min_quantized_size={minimum}")
        if spec not in self._known:
            self._known[spec] = quantizer(spec)
        return Decision(self._known[spec], source or "state_quantizers")

    def specs(self, quantizers: StateQuantizers, option: str = "state_quantizers") -> Specs:
        """`quantizers` as specs by state name, all of them readable; quantizers are remembered."""
        if quantizers is None:
            quantizers = {}
        elif isinstance(quantizers, str):
            quantizers = preset(quantizers, option).specs(self._by_preset, self._signed)
        elif not isinstance(quantizers, Mapping):
            raise BadTypeError(
                f"{option}={shown(quantizers)} must be a preset's name, a dict from state names to "
                "specs, or None"
            )
        specs: Specs = {}
        for name, value in quantizers.items():
            if name not in self._states:
                allowed = ", ".join(self._states)
                raise BadValueError(
                    f"{option} names the state {shown(name)}, but {self._owner} has {allowed}"
                )
            specs[name] = None
            if value is not None:
                # One of a user's codebooks has no spec that could be read.
                q = quantizer(self._known.get(value, value) if isinstance(value, str) else value)
                if name in self._signed and not q.map.signed:
                    raise BadValueError(
                        f"{option} sets {name!r} to {q.spec}, which is unsigned; {name} has "
                        "negative values and needs a signed map"
                    )
                harmless = name in self._signed or not q.map.signed or q.map.fitted
                if not (harmless or q.keeps_zero):
                    raise BadValueError(
                        f"{option} sets {name!r} to {q.spec}, which makes zeros negative; "
                        f"{name} is never negative and needs an unsigned map"
                    )
                if self._known.setdefault(q.spec, q) != q:
                    raise BadValueError(
                        f"{option} sets {name!r} to {q.spec}, but its codebook differs from the "
                        "one that is known by that name; each codebook needs its own label"
                    )
                specs[name] = q.spec
        return specs

    def overrides(self, overrides: Mapping[str, StateQuantizers] | None) -> dict[str, Specs]:
        """`overrides` as specs by state name for each pattern."""
        if overrides is None:
            return {}
        if not isinstance(overrides, Mapping):
            raise BadTypeError(
                f"overrides={shown(overrides)} must be a dict from parameter names, or patterns of "
                "names, to quantizers"
            )
        for key in overrides:
            if not isinstance(key, str):
                shown_key = key.__name__ if isinstance(key, type) else shown(key)
                raise BadTypeError(
                    f"overrides has the key {shown_key}; an optimizer accepts parameter names and "
                    "patterns of names as keys; qmaps.optim.param_groups(model, overrides=...) "
                    "accepts module types too"
                )
        return {key: self.specs(value, f"overrides[{key!r}]") for key, value in overrides.items()}

    @contextmanager
    def learning(self, states: Mapping[Any, Any]) -> Iterator[None]:
        """Know the codebooks of a checkpoint's states by their specs.

        They are forgotten again if the block raises. Damaged states are left to those who read.

        Raises:
            BadValueError: two codebooks go by one name.
        """
        before = dict(self._known)
        try:
            for saved in states.values():
                for state, plain in saved.items() if isinstance(saved, Mapping) else ():
                    if isinstance(plain, Mapping) and "codebook" in plain:
                        self._learn(state, plain)
            yield
        except BaseException:
            self._known = before
            raise

    def _learn(self, state: str, plain: Mapping[str, Any]) -> None:
        try:
            q = from_plain(plain).quantizer
        except BadValueError:
            return
        if not q.map.counted and self._known.setdefault(q.spec, q) != q:
            raise BadValueError(
                f"state_dict has {state} quantized with {q.spec}, but its codebook differs from "
                "the one that is known by that name"
            )

    def forget_names(self) -> None:
        """Look parameters' names up anew."""
        self._names = {}

    def _name(self, param: Tensor, group: Mapping[str, Any]) -> str:
        if param not in self._names:
            self._names.update(zip(group["params"], group.get("param_names", ()), strict=False))
        return self._names.get(param, "")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_names": {}}


def choice_settings(groups: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Everything that choices in these groups depend on: equal settings, equal choices.

    Marks of parameters are represented by the number of marks ever set: a step need not look at
    each parameter.
    """
    values: list[Any] = [_marks]
    for group in groups:
        values += group["quantize"], group["min_quantized_size"]
        values += group["state_quantizers"], group["overrides"]
    return values


def check_patterns(groups: Sequence[Mapping[str, Any]]) -> None:
    """Raise if one of the groups' overrides names no parameter of theirs.

    Raises:
        BadValueError: a pattern matches no parameter of its groups, or they have no names.
    """
    for pattern in dict.fromkeys(key for group in groups for key in group["overrides"]):
        names: list[str] = []
        for group in groups:
            if pattern in group["overrides"]:
                if "param_names" not in group:
                    raise BadValueError(
                        f"overrides names {shown(pattern)}, but the parameters have no names; pass "
                        "model.named_parameters() to the optimizer"
                    )
                names += group["param_names"]
        if not any(fnmatchcase(name, pattern) for name in names):
            raise BadValueError(matches_nothing(pattern, names))


def matches_nothing(pattern: str, names: Sequence[str], option: str = "overrides") -> str:
    """The error for a pattern of an option without a match among these names."""
    plain = pattern.replace("*", "")
    return (
        f"{option} names {shown(pattern)}, which matches no parameter; there are {listed(names)}"
        f"{nearest(plain, names)}"
    )


def listed(names: Sequence[str], count: int = 5) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more
