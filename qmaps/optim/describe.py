"""Descriptions of parameters for engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from qmaps.engines.masters import has_master, remainder_dtype
from qmaps.engines.sharding.shards import local, shard_of
from qmaps.engines.step import Observer, ParameterStep, StateStep, codes_of
from qmaps.optim.entries import Entry, label_of
from qmaps.optim.resets import every
from qmaps.optim.rule import State
from qmaps.optim.sharding import local_shapes, rounding_key, state_shard

if TYPE_CHECKING:
    from qmaps.optim.base import QuantizedOptimizer


def described(
    optimizer: QuantizedOptimizer,
    entry: Entry,
    group_number: int,
    storage: dict[str, Any],
    observers: tuple[Observer, ...] = (),
) -> ParameterStep:
    """Describe a parameter to engines.

    Args:
        optimizer: whose parameter it is.
        entry: the parameter with its gradient.
        group_number: the number of its parameter group.
        storage: the dict that its states are stored in.
        observers: are shown each update, if the parameter is kept as codes.
    """
    number, param, group, grad = entry
    codes, grad_codes = codes_of(param), codes_of(grad)
    rounds = group["stochastic_rounding"] and param.dtype == torch.bfloat16
    return ParameterStep(
        number=number,
        label=label_of(optimizer, number),
        param=local(param),
        codes=codes,
        gradient=grad if codes is None or grad_codes is None else grad_codes,
        states=_states(optimizer, entry),
        storage=storage,
        group=group_number,
        options=group,
        refit_every=group["refit_every"],
        reset_every=every(group),
        skips=group["nonfinite"] == "skip",
        key=rounding_key(optimizer, number, param, group) if rounds or codes is not None else None,
        master=has_master(param, group),
        remainder=remainder_dtype(param, group),
        shard=shard_of(param),
        observers=() if codes is None else observers,
        product=optimizer._product(storage, group),
    )


def _states(optimizer: QuantizedOptimizer, entry: Entry) -> tuple[StateStep, ...]:
    number, param, group, _ = entry
    shard = shard_of(param)
    found = []
    for name, shape in local_shapes(optimizer, param, group).items():
        about = optimizer.states[name]
        q = optimizer.quantizer_of(name, param, group)
        key = None if q is None else rounding_key(optimizer, number, param, group, state=name)
        found.append(
            StateStep(
                name=name,
                shape=tuple(shape),
                quantizer=q,
                key=key,
                initial=_initial(about, group),
                factored=about.factored,
                shard=state_shard(optimizer, name, param, shard),
            )
        )
    return tuple(found)


def _initial(state: State, group: dict[str, Any]) -> float:
    """The value of a state before the first step under the options of a group."""
    if callable(state.initial):
        return state.initial(group)
    return float(group[state.initial] if isinstance(state.initial, str) else state.initial)
