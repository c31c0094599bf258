"""Descriptions of parameters for engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from qmaps.distributed.shards import local, shard_of
from qmaps.engines.masters import has_master
from qmaps.engines.step import Observer, ParameterStep, StateStep
from qmaps.optim.entries import Entry, label_of
from qmaps.optim.sharding import local_shapes, rounding_key, state_shard

if TYPE_CHECKING:
    from qmaps.optim.base import QuantizedOptimizer


def described(
    optimizer: QuantizedOptimizer, entry: Entry, observers: tuple[Observer, ...] = ()
) -> ParameterStep:
    """Describe a parameter for an engine.

    Args:
        optimizer: the optimizer of the parameter.
        entry: the parameter with its gradient.
        observers: called with each update, if the parameter is kept as codes.
    """
    number, param, group, grad = entry
    shard = shard_of(param)
    codes = getattr(param, "codes", None)
    rounds = group["stochastic_rounding"] and param.dtype == torch.bfloat16
    groups = map(id, optimizer.param_groups)
    return ParameterStep(
        number=number,
        label=label_of(optimizer, number),
        param=local(param),
        codes=codes,
        gradient=grad if codes is None else getattr(grad, "codes", grad),
        states=_states(optimizer, entry),
        storage=optimizer.state[param],
        group=list(groups).index(id(group)),
        options=group,
        refit_every=group["refit_every"],
        skips=group["nonfinite"] == "skip",
        key=rounding_key(optimizer, number, param, group) if rounds or codes is not None else None,
        master=has_master(param, group),
        shard=shard,
        observers=() if codes is None else observers,
    )


def _states(optimizer: QuantizedOptimizer, entry: Entry) -> tuple[StateStep, ...]:
    number, param, group, _ = entry
    shard = shard_of(param)
    found = []
    for name, shape in local_shapes(optimizer, param, group).items():
        about = optimizer.states[name]
        initial = about.initial
        found.append(
            StateStep(
                name=name,
                shape=tuple(shape),
                quantizer=optimizer.quantizer_of(name, param, group),
                key=rounding_key(optimizer, number, param, group, state=name),
                initial=float(group[initial]) if isinstance(initial, str) else initial,
                factored=about.factored,
                shard=state_shard(optimizer, name, param, shard),
            )
        )
    return tuple(found)
