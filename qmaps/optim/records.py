"""Records of an optimizer's parameters and of their states."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import starmap
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qmaps.algebra.philox import RoundingKey
from qmaps.engines.masters import MASTER, REMAINDER, master_dtypes
from qmaps.engines.sharding.owners import Loads, Matrix, Owned, matrices_of, spread
from qmaps.engines.sharding.shards import Shard, local, shard_of
from qmaps.engines.step import PRODUCT, RESET, ParameterStep, Shape, StateStep, codes_of
from qmaps.optim.choice import Choices, Decision
from qmaps.optim.rule import Dims, MatrixRule, UpdateRule, every

Entry = tuple[int, Tensor, dict[str, Any], Tensor]
"""A parameter of a step: its number among all parameters, the parameter, its group, its gradient.

Of a sharded parameter these are the DTensor and the local part of the gradient."""


class Place(NamedTuple):
    """Number of a parameter among all, number of its group, and its position there."""

    number: int
    group: int
    position: int


def places(groups: Sequence[Mapping[str, Any]]) -> list[Place]:
    """The places of all parameters, in the order of their groups."""
    every_place: list[Place] = []
    for group_number, group in enumerate(groups):
        for position in range(len(group["params"])):
            every_place.append(Place(len(every_place), group_number, position))
    return every_place


@dataclass(frozen=True, eq=False)
class StateRecord(StateStep):
    """A state of a parameter; `why` is the reason for its quantizer."""

    why: str = ""


class Parameters(NamedTuple):
    """The parameters of an optimizer, for all that describes, steps, saves or counts them."""

    rule: UpdateRule
    choices: Choices
    groups: list[dict[str, Any]]
    state: dict[Any, Any]

    def records(self, only: Sequence[Place] | None = None) -> list[ParameterRecord]:
        """Records of all parameters in the order of their groups, or of those at some places.

        Parameters of `only` are not sharded.
        """
        owners: dict[int, list[Matrix]] = defaultdict(list)
        records: list[ParameterRecord] = []
        for number, group_number, position in places(self.groups) if only is None else only:
            group = self.groups[group_number]
            place, param = (group_number, position), group["params"][position]
            name = names[position] if (names := group.get("param_names")) else ""
            record = ParameterRecord(
                self.rule, self.choices, number, place, name, param, group, owners
            )
            records.append(record)
        if only is None and isinstance(self.rule, MatrixRule):
            loads: Loads = {}
            for group_number in range(len(self.groups)):
                # By groups: one that is added later changes no owner of the others.
                of_group = [r for r in records if r.place[0] == group_number]
                parts = [(r.number, m) for r in of_group for m in r.shared_matrices()]
                spread_ones = spread([matrix for _, matrix in parts], loads)
                for (number, _), matrix in zip(parts, spread_ones, strict=True):
                    owners[number].append(matrix)
        return records


@dataclass(frozen=True, eq=False)
class ParameterRecord:
    """A parameter of an optimizer, with the records of its states.

    Attributes:
        number: number of the parameter among all of the optimizer, from 0 on.
        place: numbers of its group, and of the parameter within the group.
        name: its name; empty if the group's parameters have none.
        param: the parameter; of a sharded one the DTensor.
        owners: matrices of all parameters that are computed by their owners, by number.
    """

    rule: UpdateRule
    choices: Choices
    number: int
    place: tuple[int, int]
    name: str
    param: Tensor
    group: dict[str, Any]
    owners: Mapping[int, Sequence[Matrix]]

    @cached_property
    def label(self) -> str:
        """The parameter in messages: its name, or its number in its group."""
        group, number = self.place
        name = repr(self.name) if self.name else f"{number} of group {group}"
        return f"parameter {name}"

    @cached_property
    def shard(self) -> Shard | None:
        """This process's part of the parameter; None if it has the whole."""
        return shard_of(self.param)

    @cached_property
    def local(self) -> Tensor:
        """The parameter, or its local tensor if it is sharded."""
        return self.param if self.shard is None else local(self.param)

    def shared_matrices(self) -> list[Matrix]:
        """Matrices that other processes have parts of too, without owners yet."""
        rule, shard = self.rule, self.shard
        if shard is None or not isinstance(rule, MatrixRule):
            return []
        return matrices_of(shard, stacked=rule.stacked(self.param))

    def choice(self, name: str, shape: Shape | None = None) -> Decision:
        """The quantizer of a state, and the reason for it."""
        return self.choices.of(name, self.param, self.group, shape)

    def part(self, name: str) -> Shard | None:
        """This process's part of a state or master copy; None if it has the whole."""
        if self.shard is None:
            return None
        if isinstance(self.rule, MatrixRule) and is_whole(self.rule, name):
            shape = self.rule.state_shapes(self.param, self.group)[name]
            return Owned.of(shape, self.shard, next(iter(self.owners.get(self.number, ())), None))
        return self.shard.following(state_dims(self.rule, name, self.param.dim()))

    def key(self, state: str | None = None) -> RoundingKey:
        """Key of the random numbers of the parameter, or of one of its states, for step 0.

        Elements of a shard have the same random numbers as in the whole tensor.

        Raises:
            BadValueError: stochastic rounding does not support the parameter's split.
        """
        key = RoundingKey(
            seed=self.group["seed"],
            purpose=0 if state is not None else 1 if codes_of(self.param) is None else 2,
            tensor=self.number,
            state=0 if state is None else list(self.rule.states).index(state),
        )
        if self.shard is None:
            return key
        shard = self.shard if state is None else self.part(state)
        return key if shard is None else replace(key, offset=shard.first, runs=shard.runs)

    def states(self) -> tuple[StateRecord, ...]:
        """Records of the parameter's states under its group's options."""
        shapes = self.rule.state_shapes(self.param, self.group)
        return tuple(starmap(self.state, shapes.items()))

    def state(self, name: str, shape: Shape) -> StateRecord:
        """The record of a state."""
        declared = self.rule.states[name]
        part = None if self.shard is None else self.part(name)
        quantizer, why = self.choice(name, shape)
        # Between two fits of its codebook, a state keeps the quantizer that it is stored with.
        takes_key = quantizer is not None and (quantizer.stochastic or quantizer.map.fitted)
        initial = declared.initial
        if callable(initial):
            initial = initial(self.group)
        elif isinstance(initial, str):
            initial = float(self.group[initial])
        return StateRecord(
            name=name,
            shape=tuple(shape) if part is None else part.local_shape,
            quantizer=quantizer,
            key=self.key(name) if takes_key else None,
            initial=float(initial),
            factored=declared.factored,
            shard=part,
            why=why,
        )

    def product(self, storage: Mapping[str, Any]) -> float | None:
        """Initial value of `PRODUCT`; None if it is in `storage`, or the rule does not have it."""
        start = self.rule._numbers.get(PRODUCT)
        if start is None or PRODUCT in storage:
            return None
        # States without a product are older, and go on as if options had never changed.
        return start(int(storage.get("step", 0)) - int(storage.get(RESET, 0)), self.group)

    def step(self, gradient: Tensor, storage: dict[str, Any]) -> ParameterStep:
        """Description of a step of the parameter for engines."""
        param, group = self.param, self.group
        codes = codes_of(param)
        grad_codes = None if codes is None else codes_of(gradient)
        rounds = (
            group["stochastic_rounding"] and param.dtype == torch.bfloat16
            if codes is None
            else codes.quantizer.stochastic
        )
        masters = master_dtypes(param, group)
        return ParameterStep(
            number=self.number,
            label=self.label,
            param=self.local,
            codes=codes,
            gradient=gradient if grad_codes is None else grad_codes,
            states=self.states(),
            storage=storage,
            group=self.place[0],
            options=group,
            refit_every=group["refit_every"],
            skips=group["nonfinite"] == "skip",
            key=self.key() if rounds else None,
            master=MASTER in masters,
            remainder=masters.get(REMAINDER),
            shard=self.shard,
            product=self.product(storage),
            matrices=tuple(self.owners.get(self.number, ())),
        )


def is_whole(rule: UpdateRule, name: str) -> bool:
    """Return True for a state that is computed from the whole parameter."""
    state = rule.states.get(name)
    return state is not None and state.dims is None


def state_dims(rule: UpdateRule, name: str, dims: int) -> Dims:
    """The parameter's dimension followed by each dimension of a state; None where its size is 1.

    States unknown to the rule have the parameter's shape.
    """
    state = rule.states.get(name)
    return (every if state is None or state.dims is None else state.dims)(dims)


_PROBES = tuple(torch.empty((0,) * dims, dtype=torch.float32, device="meta") for dims in (1, 2, 8))
"""Parameters with 1, 2 and 8 dimensions; the states of a rule may depend on the number."""


def states_of(rule: UpdateRule, group: dict[str, Any]) -> tuple[str, ...]:
    """The states of a rule under a group's options, for any parameter."""
    used = {name for probe in _PROBES for name in rule.state_shapes(probe, group)}
    return tuple(name for name in rule.states if name in used)
